"""The persistent kernel of plain Triton with TMA descriptors."""
