"""The model of L2 against the counters of an H200 that are committed: its promises on shapes unseen by the fit."""

import pytest

from tritonmm.autotune.fitting import l2_fit
from tritonmm.autotune.studies import fit_l2
from tritonmm.model import constants, l2_simulator

FITTED = constants.of(fit_l2.GPU).l2
POINTS = fit_l2.points()
COUNTED = fit_l2.counted(POINTS)
UNSEEN = [point for point in COUNTED if not point.fitted]


def test_the_split_is_by_shape():
    shapes = {point.shape for point in COUNTED}
    assert shapes > fit_l2.FIT
    assert len(shapes - fit_l2.FIT) >= 6
    assert len(UNSEEN) >= 100


@pytest.mark.parametrize("simulated", [False, True], ids=["of", "simulator"])
def test_bytes_of_unseen_shapes(simulated):
    predict = (lambda p: l2_simulator.simulate(p.problem, p.config, fit_l2.GPU)) if simulated else None
    found = fit_l2.errors(UNSEEN, predict)
    assert found.dram_median < 0.07, found
    assert found.dram_p95 < 0.20, found
    assert found.l2_median < 0.10, found
    assert found.hit_rate_median < 0.05, found


def test_the_best_factor_is_fast():
    rows = [row for row in fit_l2.best_factors(POINTS) if row.shape not in fit_l2.FIT]
    good = sum(row.regret <= 0.01 for row in rows)
    assert good >= 0.9 * len(rows), [row for row in rows if row.regret > 0.01]
    assert max(row.regret for row in rows) < 0.02


def test_no_other_value_near_the_fitted_one_is_better():
    """The constants in `tritonmm.l2` are those that the script finds: it has nowhere to go from them."""
    seen = [point for point in COUNTED if point.fitted]
    assert l2_fit.fit(seen, fit_l2.GPU, FITTED, steps=(1.03,)) == FITTED
