"""Layers and models with quantized weights."""

from tritonmm.nn.checkpoints import from_awq, from_gptq
from tritonmm.nn.siblings import place_siblings_

__all__ = ["from_awq", "from_gptq", "place_siblings_"]
