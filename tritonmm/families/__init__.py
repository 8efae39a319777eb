"""Kernel families: one folder a family, with everything that knows about its kernel."""
