"""tritonmm: matrix products in Triton, with the order of the output tiles as a first-class value."""

from tritonmm import gpu, l2, orders
from tritonmm.config import Config
from tritonmm.ops import addbmm, addmm, baddbmm, bmm, dot, linear, matmul, mm, mv
from tritonmm.problem import Problem
from tritonmm.select import select
from tritonmm.version import __version__

__all__ = [
    "Config",
    "Problem",
    "__version__",
    "addbmm",
    "addmm",
    "baddbmm",
    "bmm",
    "dot",
    "gpu",
    "l2",
    "linear",
    "matmul",
    "mm",
    "mv",
    "orders",
    "select",
]
