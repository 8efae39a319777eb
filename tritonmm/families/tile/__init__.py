"""The portable kernel: any sizes, strides and alignment, on every GPU and in the interpreter."""
