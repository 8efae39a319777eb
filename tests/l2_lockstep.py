"""Constants of the L2 model without what a real GPU adds to lockstep."""

from tritonmm.model import l2

LOCKSTEP = l2.Constants(
    capacity=1.0, spread=1e-9, stagger=0.0, drift=0.0, partner=0.0, merged=0.0, apart=1.0, scattered=0.0
)
"""Programs that begin together and never drift apart, an LRU that forgets at once, and merging by the SMs of a TPC
alone."""
