"""tritonmm compared with torch on a suite of GEMMs."""
