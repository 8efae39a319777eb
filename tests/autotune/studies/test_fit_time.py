"""What the fit of the time model takes from the records that ship."""

import pytest

from tritonmm.autotune.studies import fit_time
from tritonmm.gpu import spec
from tritonmm.model import constants


@pytest.mark.parametrize(("gpu", "is_near"), [("h100", True), ("h200", False)])
def test_a_record_that_began_as_another_gpus_stays_near_what_it_was(gpu, is_near):
    """Fitted again too: its GPU still has few results."""
    assert (fit_time.prior_of(constants.shipped(spec(gpu)).made) > 0) == is_near
