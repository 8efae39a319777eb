"""Models of transformers with and without tritonmm: `tritonmm serve-bench`."""
