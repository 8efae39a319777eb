"""The table of `tritonmm serve-bench`."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tritonmm.autotune.serving.compare import COMPILED, DECODE, PREFILL, Row

BASELINES = "torch" + COMPILED, "torch"
"""What ratios are relative to: the first that was measured."""


def table(rows: Sequence[Row]) -> Table:
    """A line for each model and way: tokens per second of each step, and in parentheses their ratio to the baseline's,
    above 1 if faster."""
    whats = list(dict.fromkeys(row.what for row in rows if row.what.partition(" ")[0] in (PREFILL, DECODE)))
    found = Table(box=box.SIMPLE, caption=caption(rows))
    for name in ("model", "way"):
        found.add_column(name, no_wrap=True)
    for what in whats:
        found.add_column(f"{what}\ntokens/s", justify="right", no_wrap=True)
    for name in ("memory\nGB", "KL divergence\nnats"):
        found.add_column(name, justify="right", no_wrap=True)
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault((row.model, row.way), {})[row.what] = row
    for (model, way), steps in lines.items():
        if not steps.keys() & {*whats, "model"}:
            continue  # torch's logits, which could not be computed
        gigabytes = next((row.gigabytes for row in steps.values() if row.gigabytes is not None), None)
        kl = next((row.kl for row in steps.values() if row.kl is not None), None)
        base = baseline(rows, model)
        cells = [_cell(steps.get(what), lines.get((model, base), {}).get(what), way == base) for what in whats]
        memory = "-" if gigabytes is None else f"{gigabytes:.1f}"
        found.add_row(model, way, *cells, memory, "-" if kl is None else f"{kl:.4f}")
    return found


def baseline(rows: Sequence[Row], model: str) -> str:
    """The way that a model's ratios are relative to, "" if there is none."""
    measured = {row.way for row in rows if row.model == model and row.tokens_per_s is not None}
    return next((way for way in BASELINES if way in measured), "")


def caption(rows: Sequence[Row]) -> str | None:
    """What the ratios are."""
    bases = {model: baseline(rows, model) for model in dict.fromkeys(row.model for row in rows)}
    said = dict.fromkeys(base for base in bases.values() if base)
    if not said:
        return None
    if len(said) == 1:
        return f"In parentheses: tokens/s relative to {next(iter(said))}, above 1 is faster."
    each = ", ".join(f"{base} ({model})" for model, base in bases.items() if base)
    return f"In parentheses: tokens/s relative to {each}, above 1 is faster."


def _cell(row: Row | None, base: Row | None, is_base: bool) -> str:
    if row is None or row.tokens_per_s is None:
        return "-"
    if base is None or base.tokens_per_s is None or is_base:
        return f"{row.tokens_per_s:,.0f}"
    return f"{row.tokens_per_s:,.0f} ({row.tokens_per_s / base.tokens_per_s:.2f})"


def show(rows: Sequence[Row]) -> None:
    """Prints the table, and the reason of each row without a time."""
    console = Console()
    if not console.is_terminal:  # rich's default of 80 columns would fold it
        console.width = 160
    console.print(table(rows))
    for row in rows:
        if row.message:
            said = f"{row.model}, {row.way}, {row.what}: {row.message}"
            console.print(said, soft_wrap=True, highlight=False, markup=False)
