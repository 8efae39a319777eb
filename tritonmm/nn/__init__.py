"""Layers and models with quantized weights."""

from tritonmm.nn.checkpoints import from_awq, from_gptq

__all__ = ["from_awq", "from_gptq"]
