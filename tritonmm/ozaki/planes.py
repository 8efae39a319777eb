"""Planes of residues of an operand: their memory, and the launches that fill them."""

from dataclasses import dataclass

import torch

from tritonmm.dtypes import any_name
from tritonmm.launch import launch_options, needs_int64, strides
from tritonmm.launch.steps import Step, Steps
from tritonmm.moduli import MODULI
from tritonmm.ozaki.norms_kernel import NormSpec, ScaleSpec, chunk_norms_kernel, scales_kernel
from tritonmm.ozaki.panels import round_up
from tritonmm.ozaki.residues_kernel import ResidueSpec, residues_kernel
from tritonmm.ozaki.rule import rule
from tritonmm.ozaki.scaling import CHUNK, NORM_BITS, scaling

ALONG_K = {"norms": (4, 4), "residues": (8, 256, 4)}
ACROSS_K = {"norms": (16, 4), "residues": (64, 32, 4)}
"""Lines of a block of `chunk_norms_kernel` and its warps, and lines, elements of K and warps of `residues_kernel`, for
an operand that is contiguous along K, and for others."""

SCALES_BLOCK = 2048
"""Chunks that a program of `scales_kernel` adds up."""

QUANTIZE = Steps()


@dataclass(frozen=True, slots=True)
class Planes:
    """Residues of the rows of A, or of the columns of B, which lie as rows here.

    planes: int8, (batch * moduli, lines, pitch): those of a batch are together. There may be more lines than in the
        operand; what they hold has no meaning. pitch: K rounded up to a multiple of `panels.PITCH`; beyond K are zeros.
    scales: int32, (batch, lines of the operand): the power of two that each line was multiplied by.
    counts: int64 of the shape of scales, what `rule_kernel` counts in each line; None if nothing is counted.
    """

    planes: torch.Tensor
    scales: torch.Tensor
    counts: torch.Tensor | None = None

    @classmethod
    def empty(cls, x: torch.Tensor, moduli: int, held_lines: int, counted: bool = False) -> "Planes":
        """Memory for the planes of x, (batch, lines, k), on the current stream. counted: and for counts."""
        batch, lines, k = x.shape
        planes = torch.empty(batch * moduli, held_lines, round_up(k), dtype=torch.int8, device=x.device)
        counts = torch.empty(batch, lines, dtype=torch.int64, device=x.device) if counted else None
        return cls(planes, torch.empty(batch, lines, dtype=torch.int32, device=x.device), counts)


def quantize(x: torch.Tensor, moduli: int, held_lines: int, counted: bool = False) -> Planes:
    """The planes of x, (batch, lines, k) of fp32 or fp64 with any strides, for the first `moduli` of `MODULI`.

    held_lines: lines of a plane in memory, at least those of x. counted: whether elements are counted for `decide`.
    Nothing is read on the host: launches may be captured in a graph.
    """
    found = Planes.empty(x, moduli, held_lines, counted)
    norms = empty_norms(x)
    about = x.shape, x.stride(), x.dtype, moduli, held_lines, counted
    tensors = {"x": x, "norms": norms, "scales": found.scales, "planes": found.planes, "counts": found.counts}
    QUANTIZE.launch(about, x.device, tensors, {}, lambda: steps(x, norms, found, moduli))
    return found


def empty_norms(x: torch.Tensor) -> torch.Tensor:
    """Memory for the norms of chunks, on the current stream."""
    batch, lines, k = x.shape
    return torch.empty(batch, lines, max(1, -(-k // CHUNK)), dtype=torch.int64, device=x.device)


def steps(x: torch.Tensor, norms: torch.Tensor, into: Planes, moduli: int) -> list[Step]:
    """What fills the planes of x, in turn."""
    blocks = ALONG_K if x.stride(2) == 1 else ACROSS_K
    x_strides = strides(x)
    return [
        _norms(x, norms, x_strides, *blocks["norms"]),
        _scales(norms, into, moduli),
        _residues(x, into, moduli, x_strides, *blocks["residues"]),
    ]


def _norms(x: torch.Tensor, norms: torch.Tensor, x_strides: tuple, block: int, warps: int) -> Step:
    batch, lines, k = x.shape
    chunks = norms.shape[2]
    wide = needs_int64(block, block, CHUNK, x_strides[1:], x_strides[1:])
    grid = batch * -(-lines // block) * chunks
    arguments = x, norms, lines, k, chunks, *x_strides, NormSpec(block, CHUNK, NORM_BITS, wide)
    return Step(chunk_norms_kernel, grid, arguments, launch_options(x.device, num_warps=warps))


def _scales(norms: torch.Tensor, into: Planes, moduli: int) -> Step:
    chunks, lines = norms.shape[2], into.scales.numel()
    of_line = 1 << (chunks - 1).bit_length()
    block = max(1, SCALES_BLOCK // of_line)
    _, squared, exponent = scaling(moduli)
    arguments = norms, into.scales, into.counts, lines, chunks, ScaleSpec(block, of_line, squared, exponent)
    return Step(scales_kernel, -(-lines // block), arguments, launch_options(norms.device, num_warps=4))


def _residues(
    x: torch.Tensor, into: Planes, moduli: int, x_strides: tuple, block: int, block_k: int, warps: int
) -> Step:
    batch, lines, k = x.shape
    _, held_lines, pitch = into.planes.shape
    wide = needs_int64(block, block, block_k, x_strides[1:], x_strides[1:])
    threshold = 0.0 if into.counts is None else rule(k, any_name(x.dtype), moduli).threshold
    spec = ResidueSpec(block, block_k, MODULI[:moduli], scaling(moduli).bound.bit_length(), wide, threshold)
    grid = batch * -(-lines // block) * -(-pitch // block_k)
    arguments = x, into.scales, into.planes, into.counts, lines, k, held_lines, pitch, *x_strides, spec
    return Step(residues_kernel, grid, arguments, launch_options(x.device, num_warps=warps))
