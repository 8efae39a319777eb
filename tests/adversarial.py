"""Operands on which sums along K are easy to get wrong, for comparisons bit by bit."""

import numpy as np
import torch

SPREAD = {torch.bfloat16: 20, torch.float32: 20, torch.float16: 7, torch.float8_e4m3fn: 5, torch.float8_e5m2: 7}
"""Exponents of wide operands, from minus this."""

KINDS = ("normal", "wide", "cancelling", "powers", "zeros", "subnormal", "any bits")
WIDE_KINDS = (*KINDS, "tiny", "huge")
"""Kinds for bf16 and tf32, which have the exponents of fp32."""


def kinds(dtype: torch.dtype) -> tuple[str, ...]:
    return WIDE_KINDS if dtype in (torch.bfloat16, torch.float32) else KINDS


def operands(kind: str, dtype: torch.dtype, rows: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A, (rows, k), and the transpose of B, (rows, k).

    normal: random. wide: of many exponents. cancelling: the second half of K cancels most of the first. powers: of two.
    zeros: some products are 0, beside large factors. subnormal: of the smallest numbers times large ones. tiny: sums
    near the end of fp32's subnormals. huge: sums near the end of fp32, and beyond. any bits: infinities and NaNs too.
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    shape, info = (rows, k), torch.finfo(dtype)

    def numbers(low: int, high: int, powers: bool = False) -> np.ndarray:
        fraction = 1 if powers else 1 + rng.random(shape)
        return rng.choice([-1.0, 1.0], shape) * fraction * 2.0 ** rng.integers(low, high + 1, shape)

    def cast(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.clip(x, info.min, info.max)).to(dtype).contiguous()

    spread = SPREAD[dtype]
    if kind == "any bits":
        integers = {1: np.uint8, 2: np.uint16, 4: np.uint32}[dtype.itemsize]
        bits = (rng.integers(0, 1 << 8 * dtype.itemsize, shape).astype(integers) for _ in "ab")
        a, b = (torch.from_numpy(x.view(f"i{dtype.itemsize}")).view(dtype) for x in bits)
        if dtype == torch.float32:  # a NaN of which tf32 keeps no bit of the fraction might count as infinity
            a, b = (torch.where(x.isnan(), torch.nan, x) for x in (a, b))
        return a, b
    if kind == "normal":
        return cast(rng.standard_normal(shape)), cast(rng.standard_normal(shape))
    if kind in ("wide", "powers"):
        return cast(numbers(-spread, spread, kind == "powers")), cast(numbers(-spread, spread, kind == "powers"))
    if kind == "cancelling":
        a, b = numbers(-spread, spread), numbers(-spread, spread)
        half = k // 2
        a[:, k - half :], b[:, k - half :] = -a[:, :half], b[:, :half]
        a *= 1 + info.eps * (rng.random(shape) < 0.3)
        order = rng.permutation(k)
        return cast(a[:, order]), cast(b[:, order])
    if kind == "zeros":
        a, b = numbers(-spread, 0), numbers(-spread, 0)
        a[rng.random(shape) < 0.4] = 0
        b[rng.random(shape) < 0.4] = -0.0
        return cast(a), cast(np.where((a == 0) & (rng.random(shape) < 0.5), info.max, b))
    if kind == "subnormal":
        least = int(np.log2(info.smallest_normal))
        return cast(numbers(least - 8, least)), cast(numbers(-least // 2, -least))
    low, high = {"tiny": (-79, -72), "huge": (60, 64)}[kind]
    return cast(numbers(low, high)), cast(numbers(low, high))
