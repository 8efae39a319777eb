"""Models: L2 and DRAM traffic of a tile order, and the time of a config."""
