"""Fits of the constants of the time model and of the L2 model to measurements, by studies and by `tune --quick`."""
