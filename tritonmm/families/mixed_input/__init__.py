"""8-bit weights with bf16 or fp16 activations on Hopper: dequantized in registers, multiplied by wgmma."""
