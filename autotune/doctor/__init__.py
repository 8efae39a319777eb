"""Is this machine fit: versions, GPUs, permissions, known traps, a self-test."""
