"""The moduli of exact products of residues: fp32 and fp64 GEMMs as several int8 GEMMs (Ozaki scheme II)."""

from typing import Any

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
"""Pairwise coprime, the largest first: residues of each are int8. A product with N moduli uses the first N."""

FEWEST_MODULI = 5
"""With fewer, rounding the operands to integers could move a result of a long K out of the range of the moduli."""

MOST_K = 131_071
"""The longest K of which a sum of products of int8 fits int32: K * 128**2 < 2**31."""

LONGEST_K = 2**24 - 1
"""The longest K of precision "ozaki", whose products are those of parts of K. Up to here rounding the operands to
integers cannot move a result out of the range of the moduli."""

DEFAULT_MODULI = {"fp32": 8, "fp64": 15}
"""N of precisions "ozaki" and "ozaki:safe", by dtype: as accurate as a native product of normal data, or better
(docs/ozaki.md)."""

SAFE = "ozaki:safe"
"""The precision that falls back to a native product where nothing proves that one of residues is as accurate."""


def moduli_of(dtype: str, precision: str) -> int:
    """N of a precision "ozaki", "ozaki:safe" or "ozaki:N" for operands of a dtype; 0 if it is not one."""
    if dtype not in DEFAULT_MODULI:
        return 0
    return DEFAULT_MODULI[dtype] if precision in ("ozaki", SAFE) else _SPELLED.get(precision, 0)


_SPELLED = {f"ozaki:{n}": n for n in range(FEWEST_MODULI, len(MODULI) + 1)}


def precision_reason(problem: Any) -> str:
    """Why no product of residues computes a `Problem` whose precision asks for one, or ""."""
    p = problem
    if p.k > LONGEST_K:
        return f"k is {p.k}; with precision {p.precision!r} it is at most {LONGEST_K}"
    if p.precision == SAFE and p.accumulation == "invariant":
        return (
            f'precision is {SAFE!r}, whose bits depend on all of the operands; for invariant accumulation use "ozaki"'
        )
    if p.ragged:
        return f"precision is {p.precision!r}; grouped products do not have it"
    if p.symmetric not in ("", "gram"):
        return f"precision is {p.precision!r}; it computes symmetric products in full: use mm"
    return ""


def planes_reason(problem: Any) -> str:
    """Why a `Problem` with moduli is none of planes of residues, or ""."""
    p = problem
    if not FEWEST_MODULI <= p.moduli <= len(MODULI) or p.batch % p.moduli:
        return f"moduli is {p.moduli}, batch {p.batch}; there are {FEWEST_MODULI} to {len(MODULI)} to a batch"
    if {p.dtype, p.b_dtype, p.out_dtype} != {"int8"}:
        return f"dtypes are {p.dtype}, {p.b_dtype} and {p.out_dtype}; residues are int8"
    if p.k > MOST_K:
        return f"k is {p.k}; sums of products of residues fit int32 up to {MOST_K}"
    adds = p.epilogue.scaled or p.epilogue.bias or p.epilogue.c
    has_more = p.scales or p.symmetric or p.ragged or adds
    return "residues have neither scales, symmetry, groups nor an epilogue" if has_more else ""
