"""Layers and models with quantized weights."""
