"""The public names of `tritonmm`, imported from the modules that define them."""

from tritonmm import accumulation, gpu, layouts, orders
from tritonmm.config import Config
from tritonmm.explanation import Explanation, explain
from tritonmm.model import l2
from tritonmm.nn.quantize import quantize_
from tritonmm.problem import Problem
from tritonmm.selection import select
from tritonmm.torch_ops.dense import addbmm, addmm, baddbmm, bmm, dot, linear, matmul, mm, mv
from tritonmm.torch_ops.grouped import grouped_mm
from tritonmm.torch_ops.newton_schulz import newton_schulz
from tritonmm.torch_ops.override import disable, enable, use
from tritonmm.torch_ops.quantized import int_mm, scaled_mm, weight_only_linear
from tritonmm.torch_ops.quantized_planes import quantized_planes
from tritonmm.torch_ops.scaled_grouped import scaled_grouped_mm
from tritonmm.torch_ops.siblings import merge_siblings
from tritonmm.torch_ops.symmetric import gram, symmetric_mm
from tritonmm.torch_ops.weight_only_grouped import weight_only_grouped_mm
from tritonmm.version import __version__

__all__ = [
    "Config",
    "Explanation",
    "Problem",
    "__version__",
    "accumulation",
    "addbmm",
    "addmm",
    "baddbmm",
    "bmm",
    "disable",
    "dot",
    "enable",
    "explain",
    "gpu",
    "gram",
    "grouped_mm",
    "int_mm",
    "l2",
    "layouts",
    "linear",
    "matmul",
    "merge_siblings",
    "mm",
    "mv",
    "newton_schulz",
    "orders",
    "quantize_",
    "quantized_planes",
    "scaled_grouped_mm",
    "scaled_mm",
    "select",
    "symmetric_mm",
    "use",
    "weight_only_grouped_mm",
    "weight_only_linear",
]
