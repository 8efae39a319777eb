"""From the planes of a product to the product: the launches."""

from typing import Any, NamedTuple

import torch

from tritonmm.launch import addend_strides, launch_options, strides
from tritonmm.launch.steps import Step, Steps
from tritonmm.ozaki.crt import MOST_OF_64_BITS, crt, crt64
from tritonmm.ozaki.nonfinite_kernel import NonfiniteSpec, nonfinite_kernel
from tritonmm.ozaki.planes import Planes
from tritonmm.ozaki.reconstruct_kernel import ReconstructSpec, reconstruct_kernel

BLOCK = 2, 512
"""Rows and columns of a block of `reconstruct_kernel`."""

NUM_WARPS = 4

NONFINITE_BLOCK = 32, 32, 32
"""Rows, columns and elements of K of a block of `nonfinite_kernel`."""

NONFINITE_PROGRAMS = 256
"""Programs of `nonfinite_kernel`, at most: rarely there is anything to do."""

RECONSTRUCT = Steps()


class Epilogue(NamedTuple):
    """What is done with a product: alpha * product + bias + beta * c, with c of the product's shape."""

    alpha: float = 1.0
    beta: float = 1.0
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def reconstruct(
    sums: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    of_a: Planes,
    of_b: Planes,
    out: torch.Tensor,
    epilogue: Epilogue,
    moduli: int,
    nonfinite: bool = True,
    skip: torch.Tensor | None = None,
) -> None:
    """Writes the product with the residues `sums`, int8 (batch * moduli, m, n rounded up), to out.

    a: (batch, m, k); b: (batch, k, n); out: (batch, m, n). of_a, of_b: the planes of a and of b.mT. nonfinite: whether
    elements of rows and columns with an infinity or NaN are written, too. skip: one int32; finite elements are not
    written if it is not 0 on the device.
    """
    alpha, beta, c, bias = epilogue
    of_c = None if c is None else (c.stride(), c.dtype)
    of_bias = None if bias is None else bias.dtype
    of_operands = a.shape, a.stride(), b.shape[2], b.stride(), a.dtype
    about = of_operands, out.stride(), of_c, of_bias, alpha != 1, moduli, nonfinite
    tensors: dict[str, torch.Tensor | None]
    tensors = {"planes": sums, "row_scales": of_a.scales, "col_scales": of_b.scales, "a": a, "b": b}
    tensors |= {"row_special": of_a.special, "col_special": of_b.special, "out": out, "c": c, "bias": bias}
    tensors["skip"] = skip
    numbers = {"alpha": float(alpha), "beta": float(beta)}
    RECONSTRUCT.launch(
        about,
        out.device,
        tensors,
        numbers,
        lambda: steps(sums, a, b, of_a, of_b, out, epilogue, moduli, skip)[: 1 + nonfinite],
    )


def steps(
    sums: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    of_a: Planes,
    of_b: Planes,
    out: torch.Tensor,
    epilogue: Epilogue,
    moduli: int,
    skip: torch.Tensor | None = None,
) -> list[Step]:
    """What writes the product, in turn: finite elements, then all others."""
    batch, m, n = out.shape
    alpha, beta, c, bias = epilogue
    scaled = alpha != 1
    constants = crt(moduli)
    fp32 = a.dtype == out.dtype == torch.float32
    spec = ReconstructSpec(
        *BLOCK,
        constants.bits,
        tuple(tuple(map(float, digits)) for digits in constants.weights),
        tuple(map(float, constants.product)),
        constants.quotient,
        scaled,
        out.dtype == torch.float32,
        crt64(moduli) if fp32 and moduli <= MOST_OF_64_BITS else None,
    )
    written: tuple[Any, ...] = (out, c, bias, float(alpha), float(beta))
    out_strides = strides(out), addend_strides(c, out)
    finite = of_a.scales, of_b.scales, *written, m, n, sums.shape[2], skip
    grid = batch * -(-m // BLOCK[0]) * -(-n // BLOCK[1])
    scales = of_a.scales, of_b.scales, of_a.special, of_b.special
    others = *scales, a, b, *written, m, n, a.shape[2], batch, strides(a), strides(b)
    blocks = batch * -(-m // NONFINITE_BLOCK[0]) * -(-n // NONFINITE_BLOCK[1])
    special = NonfiniteSpec(*NONFINITE_BLOCK, scaled)
    options = launch_options(out.device, num_warps=NUM_WARPS)
    programs = min(blocks, NONFINITE_PROGRAMS)
    return [
        Step(reconstruct_kernel, grid, (sums, *finite, *out_strides, spec), options),
        Step(nonfinite_kernel, programs, (*others, *out_strides, special), options | {"num_stages": 1}),
    ]
