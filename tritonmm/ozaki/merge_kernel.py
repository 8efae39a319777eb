"""Adds the residues of two parts of K: sums of products of either are known modulo each modulus, and so is the total.

A program adds one block of one plane. Sums of two residues are in -256..254, and are reduced again.

Supports any sizes; every GPU and the interpreter.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from tritonmm.device.constexpr_args import ConstexprArgs
from tritonmm.device.numeric import multiple_of
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.residue import residue_in_plane


@dataclass(frozen=True)
class MergeSpec(ConstexprArgs):
    """What `merge_kernel` is compiled for."""

    block: int
    moduli: tuple[int, ...]


@triton.jit
def merge_kernel(sums, more, elements, skip, S: tl.constexpr):
    """sums[plane] = the residue of sums[plane] + more[plane] modulo S.moduli[plane % their number].

    sums, more: int8, planes of `elements`, a multiple of 16. skip: None, or one int32: nothing is added if it is not 0.
    Grid: planes x blocks.
    """
    follow_previous_grid()
    if skip is not None and tl.load(skip) != 0:
        return
    elements = multiple_of(elements, 16)
    MODULI: tl.constexpr = S.moduli
    blocks = tl.cdiv(elements, S.block)
    plane = tl.program_id(0) // blocks
    first = plane.to(tl.int64) * elements + tl.program_id(0) % blocks * S.block
    at = tl.arange(0, S.block)
    inside = at < elements - tl.program_id(0) % blocks * S.block
    total = tl.load(sums + first + at, mask=inside, other=0).to(tl.int32)
    total += tl.load(more + first + at, mask=inside, other=0).to(tl.int32)
    tl.store(sums + first + at, residue_in_plane(total, plane % len(MODULI), MODULI).to(tl.int8), mask=inside)
