"""Programmatic dependent launch: a grid that starts while the one before it in the stream still runs."""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq


@triton.jit
def follow_previous_grid():
    """Waits for the grid before this one: all its writes are visible afterwards, and memory may be touched.

    The next grid may be launched from here on; its programs start where there is room and wait in turn. It is launched
    after this wait, not before: torch.compile's kernels wait for a grid only where they use what it wrote, and read
    what earlier grids wrote without waiting. Those must have ended when the next grid starts.
    GPUs before sm_90 start grids in turn.
    """
    if cuda_capability_geq(9):
        # Not triton.language.extra.cuda.gdc_wait: until Triton 3.9 it lets the compiler load before it.
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0",
            "=r,~{memory}", [], tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
