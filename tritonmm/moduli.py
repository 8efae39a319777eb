"""The moduli of exact products of residues: fp32 and fp64 GEMMs as several int8 GEMMs (Ozaki scheme II)."""

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
"""Pairwise coprime, the largest first: residues of each are int8. A product with N moduli uses the first N."""

FEWEST_MODULI = 5
"""With fewer, rounding the operands to integers could move a result of a long K out of the range of the moduli."""

MOST_K = 131_071
"""The longest K of which a sum of products of int8 fits int32: K * 128**2 < 2**31."""
