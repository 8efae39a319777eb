"""Exact fp32 and fp64 on Hopper: operands are read into registers slice by slice."""
