"""tritonmm: matrix products in Triton, with the order of the output tiles as a first-class value."""

from tritonmm import gpu, l2, layouts, orders
from tritonmm.config import Config
from tritonmm.ops import matmul
from tritonmm.problem import Problem
from tritonmm.select import select
from tritonmm.version import __version__

__all__ = ["Config", "Problem", "__version__", "gpu", "l2", "layouts", "matmul", "orders", "select"]
