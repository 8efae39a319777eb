"""Layers and models with quantized weights, and attention of models that decode."""

from tritonmm.nn.attention import use_decode_attention_
from tritonmm.nn.checkpoints import from_awq, from_gptq
from tritonmm.nn.siblings import place_siblings_
from tritonmm.torch_ops.decode_attention import decode_attention

__all__ = ["decode_attention", "from_awq", "from_gptq", "place_siblings_", "use_decode_attention_"]
