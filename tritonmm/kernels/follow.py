"""Programmatic dependent launch: a grid that starts while the one before it in the stream still runs."""

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq


@triton.jit
def follow_previous_grid():
    """Waits for the grid before this one: all its writes are visible afterwards, and memory may be touched.

    The next grid may be launched from here on; its programs start where there is room and wait in turn.
    """
    if cuda_capability_geq(9):
        gdc_launch_dependents()
        gdc_wait()
