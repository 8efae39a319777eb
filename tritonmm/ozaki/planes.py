"""Planes of residues of operands: their memory, and the launches that fill them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from tritonmm.dtypes import any_name
from tritonmm.launch import launch_options, needs_int64, strides
from tritonmm.launch.steps import Step, Steps
from tritonmm.moduli import MODULI
from tritonmm.ozaki.norms_kernel import NormSpec, ScaleSpec, chunk_norms_kernel, scales_kernel
from tritonmm.ozaki.panels import round_up
from tritonmm.ozaki.residues_kernel import ResidueSpec, residues_kernel
from tritonmm.ozaki.rule import rule
from tritonmm.ozaki.scaling import CHUNK, FEW_CHUNKS, NORM_BITS, scaling

ALONG_K = {"norms": 8, "residues": (8, 256)}
ACROSS_K = {"norms": 16, "residues": (64, 32)}
"""Lines of a block of `chunk_norms_kernel`, and lines and elements of K of `residues_kernel`, for an operand that is
contiguous along K, and for others."""

WARP_BYTES = 512
"""Bytes that a warp loads at once: a part of one line, if the operand is contiguous along K. The sums of a line then
stay in a warp and need no shared memory."""

NUM_WARPS = 4

SCALES_BLOCK = 512
"""Chunks that a program of `scales_kernel` adds up."""

QUANTIZE = Steps()


@dataclass(frozen=True, slots=True)
class Planes:
    """Residues of the rows of A, or of the columns of B, which lie as rows here.

    planes: int8, (batch * moduli, lines, pitch): those of a batch are together. There may be more lines than in the
        operand; what they hold has no meaning. pitch: K rounded up to a multiple of `panels.PITCH`; beyond K are zeros.
    scales: int32, (batch, lines of the operand): the power of two that each line was multiplied by.
    special: one int32, not 0 if a line has an infinity or NaN.
    counts: int64 of the shape of scales, what `rule_kernel` counts in each line; None if nothing is counted.
    """

    planes: torch.Tensor
    scales: torch.Tensor
    special: torch.Tensor
    counts: torch.Tensor | None = None

    @classmethod
    def empty(cls, x: torch.Tensor, moduli: int, held_lines: int, counted: bool = False) -> "Planes":
        """Memory for the planes of x, (batch, lines, k), on the current stream. counted: and for counts."""
        batch, lines, k = x.shape
        planes = torch.empty(batch * moduli, held_lines, round_up(k), dtype=torch.int8, device=x.device)
        scales = torch.empty(batch, lines, dtype=torch.int32, device=x.device)
        counts = torch.empty(batch, lines, dtype=torch.int64, device=x.device) if counted else None
        return cls(planes, scales, torch.empty(1, dtype=torch.int32, device=x.device), counts)


class Operand(NamedTuple):
    """An operand (batch, lines, k) of fp32 or fp64 with any strides, memory for the norms of its chunks, and for its
    planes."""

    x: torch.Tensor
    norms: torch.Tensor
    into: Planes

    @classmethod
    def of(cls, x: torch.Tensor, moduli: int, held_lines: int, counted: bool) -> "Operand":
        """With memory on the current stream."""
        return cls(x, empty_norms(x), Planes.empty(x, moduli, held_lines, counted))


def quantize(x: torch.Tensor, moduli: int, held_lines: int, counted: bool = False) -> Planes:
    """The planes of x, (batch, lines, k) of fp32 or fp64 with any strides, for the first `moduli` of `MODULI`.

    held_lines: lines of a plane in memory, at least those of x. counted: whether elements are counted for `decide`.
    Nothing is read on the host: launches may be captured in a graph.
    """
    operand = Operand.of(x, moduli, held_lines, counted)
    _launch(operand, None, moduli)
    return operand.into


def quantize_both(
    a: torch.Tensor, b: torch.Tensor, moduli: int, held_lines: tuple[int, int], counted: bool = False
) -> tuple[Planes, Planes]:
    """`quantize` of two operands with as many batches and elements of K, in the same launches."""
    first = Operand.of(a, moduli, held_lines[0], counted)
    second = Operand.of(b, moduli, held_lines[1], counted)
    _launch(first, second, moduli)
    return first.into, second.into


def _launch(first: Operand, second: Operand | None, moduli: int) -> None:
    about = [moduli]
    tensors = {}
    for name, operand in zip("ab", (first, second), strict=False):
        if operand is not None:
            x, norms, into = operand
            about += x.shape, x.stride(), x.dtype, into.planes.shape[1], into.counts is None
            tensors |= {name: x, f"{name}_norms": norms, f"{name}_scales": into.scales, f"{name}_planes": into.planes}
            tensors |= {f"{name}_counts": into.counts, f"{name}_special": into.special}
    QUANTIZE.launch(tuple(about), first.x.device, tensors, {}, lambda: steps(first, second, moduli))


def empty_norms(x: torch.Tensor) -> torch.Tensor:
    """Memory for the norms of chunks, on the current stream."""
    batch, lines, k = x.shape
    return torch.empty(batch, lines, max(1, -(-k // CHUNK)), dtype=torch.int64, device=x.device)


def steps(first: Operand, second: Operand | None, moduli: int) -> list[Step]:
    """What fills the planes of one operand or of two, in turn."""
    chunks = first.norms.shape[2]
    if chunks <= FEW_CHUNKS and first.into.counts is None:  # with both, a thread needs 203 registers
        return [_norms(first, second), _residues(first, second, moduli, finds_scales=True)]
    return [_norms(first, second), _scales(first, second, moduli), _residues(first, second, moduli, finds_scales=False)]


def _norms(first: Operand, second: Operand | None) -> Step:
    _, _, k = first.x.shape
    chunks = first.norms.shape[2]
    tensors, lines, sizes, specs, grids = [], [], [], [], []
    for operand in (first, second):
        if operand is None:
            tensors += [None] * 4
            lines, sizes, specs = [*lines, 0], [*sizes, 0, 0, 0], [*specs, specs[0]]
            continue
        x, norms, into = operand
        block, of_x = _blocks(x)["norms"], strides(x)
        tensors += x, norms, into.counts, into.special
        lines.append(x.shape[1])
        sizes += of_x
        part = WARP_BYTES // x.itemsize if x.stride(2) == 1 else CHUNK
        specs.append(NormSpec(block, CHUNK, part, NORM_BITS, needs_int64(block, block, CHUNK, of_x[1:], of_x[1:])))
        grids.append(x.shape[0] * -(-x.shape[1] // block) * chunks)
    arguments = *tensors, *lines, k, chunks, grids[0], *sizes, *specs
    return Step(chunk_norms_kernel, sum(grids), arguments, launch_options(first.x.device, num_warps=NUM_WARPS))


def _scale_spec(block: int, chunks: int, moduli: int) -> ScaleSpec:
    _, squared, exponent = scaling(moduli)
    return ScaleSpec(block, chunks, squared, exponent)


def _scales(first: Operand, second: Operand | None, moduli: int) -> Step:
    chunks = first.norms.shape[2]
    of_line = _power_of_two(chunks)
    block = max(1, SCALES_BLOCK // of_line)
    tensors, lines = [], []
    for operand in (first, second):
        tensors += (None,) * 3 if operand is None else (operand.norms, operand.into.scales, operand.into.special)
        lines.append(0 if operand is None else operand.into.scales.numel())
    grids = [-(-count // block) for count in lines]
    arguments = *tensors, *lines, chunks, grids[0], _scale_spec(block, of_line, moduli)
    return Step(scales_kernel, sum(grids), arguments, launch_options(first.x.device, num_warps=NUM_WARPS))


def _residues(first: Operand, second: Operand | None, moduli: int, finds_scales: bool) -> Step:
    _, _, k = first.x.shape
    pitch, chunks = first.into.planes.shape[2], first.norms.shape[2]
    tensors, lines, held, sizes, specs, grids = [], [], [], [], [], []
    for operand in (first, second):
        if operand is None:
            tensors += [None] * 6
            lines, held, sizes, specs = [*lines, 0], [*held, 0], [*sizes, 0, 0, 0], [*specs, specs[0]]
            continue
        x, norms, into = operand
        (block, block_k), of_x = _blocks(x)["residues"], strides(x)
        tensors += x, norms if finds_scales else None, into.scales, into.planes, into.counts, into.special
        lines.append(x.shape[1])
        held.append(into.planes.shape[1])
        sizes += of_x
        wide = needs_int64(block, block, block_k, of_x[1:], of_x[1:])
        threshold = 0.0 if into.counts is None else rule(k, any_name(x.dtype), moduli).threshold
        scale = _scale_spec(block, _power_of_two(chunks), moduli) if finds_scales else None
        bits = scaling(moduli).bound.bit_length()
        specs.append(ResidueSpec(block, block_k, MODULI[:moduli], bits, wide, x.stride(2) == 1, threshold, scale))
        grids.append(x.shape[0] * -(-x.shape[1] // block) * -(-pitch // block_k))
    arguments = *tensors, *lines, *held, k, pitch, chunks, grids[0], *sizes, *specs
    return Step(residues_kernel, sum(grids), arguments, launch_options(first.x.device, num_warps=NUM_WARPS))


def _blocks(x: torch.Tensor) -> dict:
    return ALONG_K if x.stride(2) == 1 else ACROSS_K


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
