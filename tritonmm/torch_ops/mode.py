"""The accumulation of GEMMs whose call names none: what `enable` or `use` require of the whole process."""

from tritonmm.problem import ACCUMULATIONS

_REQUIRED = "any"


def required() -> str:
    """The accumulation, as `Problem.accumulation`, of calls that name none."""
    return _REQUIRED


def require(accumulation: str) -> None:
    """Sets `required`. The override calls it, under its lock."""
    global _REQUIRED
    _REQUIRED = accumulation


def check_accumulation(accumulation: str) -> None:
    """Raises ValueError unless it is a value of `Problem.accumulation`, or "" for `required`."""
    if accumulation and accumulation not in ACCUMULATIONS:
        known = ", ".join(map(repr, ACCUMULATIONS))
        raise ValueError(f"accumulation is {accumulation!r}; it must be {known}, or '' for what enable() requires")
