"""Layouts of shared memory and of registers: which byte an element lies at, and which thread holds it.

    layout.py      Layout: shape and stride, nested
    algebra.py     composition, complement, inverses, division
    swizzle.py     Swizzle<b,m,s> on offsets, and a layout followed by one
    banks.py       the bank conflicts of one warp instruction
    tv.py          thread-value layouts: which thread holds which element of a tile, and its bank conflicts
    mma_atoms.py   the TV layouts of tensor-core instructions
    bridge.py      conversion to and from Gluon's shared layouts; Triton is imported when it is called

Everything is exact integer arithmetic on the host and needs only numpy.
"""

from tritonmm.layouts import mma_atoms
from tritonmm.layouts.algebra import (
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    right_inverse,
    tiled_divide,
    zipped_divide,
)
from tritonmm.layouts.banks import Conflicts, bank_conflicts
from tritonmm.layouts.bridge import from_triton, to_triton
from tritonmm.layouts.layout import Layout
from tritonmm.layouts.swizzle import Swizzle, Swizzled
from tritonmm.layouts.tv import blocked, inverse_tv, owners, partition, vector_elems, warp_conflicts

__all__ = [
    "Conflicts",
    "Layout",
    "Swizzle",
    "Swizzled",
    "bank_conflicts",
    "blocked",
    "coalesce",
    "complement",
    "composition",
    "from_triton",
    "inverse_tv",
    "left_inverse",
    "logical_divide",
    "mma_atoms",
    "owners",
    "partition",
    "right_inverse",
    "tiled_divide",
    "to_triton",
    "vector_elems",
    "warp_conflicts",
    "zipped_divide",
]
