"""Register fragments of tensor-core instructions, as thread-value layouts of A, B and C.

    mma.sync (sm_80)       A, B and C in the registers of one warp
    wgmma (sm_90)          C in the registers of a warpgroup, 4 warps of 16 rows each; A and B in shared memory

Layouts number the elements of A as (m, k), of B as (n, k) and of C as (m, n), with the first index fastest. Names are
CuTe's (`include/cute/arch/mma_sm80.hpp`, `mma_sm90_gmma.hpp`): the shape, then the types of D, A, B and C, or of D, A
and B for wgmma. Source: the PTX manual, sections "Matrix fragments for mma.m16n8k16" and its siblings, and "Register
fragments and shared memory matrix layouts" of wgmma.

    mma.m16n8k16, 16-bit A, lane 4*g + t:      values 0 1 | 2 3 | 4 5 | 6 7
      rows     g, g+8, g, g+8                  columns 2t, 2t+1; the last four values are 8 columns further
"""

import re
from dataclasses import dataclass

from tritonmm.layouts.layout import Layout


@dataclass(frozen=True, slots=True)
class Atom:
    """One tensor-core instruction: D = A B + C for m x n x k.

    a, b, c: TV layouts, (thread, value) -> element; None for an operand that is read from shared memory.
    types: of D, A, B and C.
    """

    name: str
    m: int
    n: int
    k: int
    types: tuple[str, str, str, str]
    a: Layout | None
    b: Layout | None
    c: Layout

    @property
    def threads(self) -> int:
        """Threads that execute the instruction: 32 or 128."""
        return self.c[0].size

    def operands(self) -> dict[str, tuple[Layout, tuple[int, int]]]:
        """TV layout and shape of each operand in registers, by its letter."""
        shapes = {"A": (self.a, (self.m, self.k)), "B": (self.b, (self.n, self.k)), "C": (self.c, (self.m, self.n))}
        return {letter: (tv, shape) for letter, (tv, shape) in shapes.items() if tv is not None}


_C_16x8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))  # C of 16 x 8: a pair in a row, and the pair 8 rows below
_A_16x16 = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
_B_8x16 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
_A_16x8 = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
_B_8x8 = Layout(((4, 8), 2), ((16, 1), 8))
_A_16x8_TF32 = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
_B_8x8_TF32 = Layout(((4, 8), 2), ((8, 1), 32))


def _sm80(k: int, types: str, a: Layout, b: Layout) -> Atom:
    each = tuple(re.findall(r"BF16|TF32|F16|F32", types))
    return Atom(f"SM80_16x8x{k}_{types}_TN", 16, 8, k, each, a, b, _C_16x8)


ATOMS = {
    atom.name: atom
    for atom in (
        *(_sm80(16, types, _A_16x16, _B_8x16) for types in ("F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32")),
        *(_sm80(8, types, _A_16x8, _B_8x8) for types in ("F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32")),
        _sm80(8, "F32TF32TF32F32", _A_16x8_TF32, _B_8x8_TF32),
    )
}
"""The mma.sync atoms by name. `atom` also knows the wgmma atoms, one for each n."""

# Elements of K of one wgmma, 32 bytes, by operand type.
_WGMMA_K = {"F16": 16, "BF16": 16, "TF32": 8, "E4M3": 32, "E5M2": 32, "S8": 32, "U8": 32}


def wgmma_accumulator(n: int) -> Layout:
    """The TV layout of the 64 x n accumulator of wgmma: ((4,8,4),(2,2,n/8)):((128,1,16),(64,8,512)).

    Warp w holds rows 16 w to 16 w + 15; each 8 columns are laid out as C of mma.sync. Raises ValueError unless n is a
    multiple of 8 from 8 to 256.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma: n is {n}; it must be a multiple of 8 from 8 to 256")
    return Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))


def atom(name: str) -> Atom:
    """The atom of that name, such as SM80_16x8x16_F32BF16BF16F32_TN or SM90_64x256x16_F32BF16BF16_SS.

    Raises ValueError for an unknown name.

    >>> atom("SM90_64x256x16_F32BF16BF16_SS").threads
    128
    """
    if name in ATOMS:
        return ATOMS[name]
    inputs = "|".join(sorted(_WGMMA_K, key=len, reverse=True))
    found = re.fullmatch(rf"SM90_64x(\d+)x(\d+)_(F16|F32|S32)({inputs})({inputs})_SS(_TN)?", name)
    if not found or int(found[2]) != _WGMMA_K[found[4]] or _WGMMA_K[found[4]] != _WGMMA_K[found[5]]:
        known = ", ".join(ATOMS)
        raise ValueError(f"unknown atom {name!r}; known are {known}, and wgmma as in SM90_64x256x16_F32BF16BF16_SS")
    n = int(found[1])
    return Atom(name, 64, n, int(found[2]), (found[3], found[4], found[5], found[3]), None, None, wgmma_accumulator(n))
