"""The order in which two programs exchange sums, as the device code has it, run as Python on torch's tensors."""

import pytest
import torch

from tritonmm.families.mixed_input.epilogue import from_thread_order, in_thread_order


@pytest.mark.parametrize(("rows", "cols"), [(64, 128), (128, 64), (64, 8)])
def test_four_exchanged_sums_are_those_of_one_thread(rows, cols):
    """wgmma leaves a thread two neighbouring columns of a row, and of the row eight further. Lanes are in turn."""
    sums = torch.arange(rows * cols).reshape(rows, cols)
    vector = in_thread_order.fn(sums)
    assert torch.equal(from_thread_order.fn(vector, rows, cols), sums)
    for warp in vector.reshape(-1, 32, 4):
        row, col = divmod(int(warp[0, 0]), cols)
        assert (row % 16, col % 8) == (0, 0)
        for lane, four in enumerate(warp):
            at = (row + lane // 4) * cols + col + 2 * (lane % 4)
            assert four.tolist() == [at, at + 1, at + 8 * cols, at + 8 * cols + 1]
