"""The model of L2 against the committed counters of two GPUs: its promises on shapes unseen by the fit."""

import pytest

from tritonmm.autotune.fitting import l2_fit
from tritonmm.autotune.studies import fit_l2
from tritonmm.gpu import spec
from tritonmm.model import constants, l2_simulator

GPUS = spec("h200"), spec("h100")
POINTS = {gpu: fit_l2.points(gpu) for gpu in GPUS}
COUNTED = {gpu: fit_l2.counted(found) for gpu, found in POINTS.items()}

over_gpus = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)


@over_gpus
def test_the_split_is_by_shape(gpu):
    shapes = {point.shape for point in COUNTED[gpu]}
    assert shapes >= fit_l2.FIT - {(12288, 16384, 4096), (16384, 16384, 4096)}  # which only the H200 has counted
    assert len(shapes - fit_l2.FIT) >= 6
    assert sum(not point.fitted for point in COUNTED[gpu]) >= 100


@over_gpus
@pytest.mark.parametrize("simulated", [False, True], ids=["of", "simulator"])
def test_bytes_of_unseen_shapes(gpu, simulated):
    predict = (lambda p: l2_simulator.simulate(p.problem, p.config, gpu)) if simulated else None
    found = fit_l2.errors([point for point in COUNTED[gpu] if not point.fitted], gpu, predict)
    assert found.dram_median < 0.05, found
    assert found.dram_p95 < 0.15, found
    assert found.l2_median < 0.08, found
    assert found.hit_rate_median < 0.03, found


def test_the_best_factor_is_fast():
    gpu = GPUS[0]
    rows = [row for row in fit_l2.best_factors(POINTS[gpu], gpu) if row.shape not in fit_l2.FIT]
    good = sum(row.regret <= 0.01 for row in rows)
    assert good >= 0.9 * len(rows), [row for row in rows if row.regret > 0.01]
    assert max(row.regret for row in rows) < 0.02


@over_gpus
def test_no_other_value_near_the_fitted_one_is_better(gpu):
    """The constants in `tritonmm.l2` are those that the script finds: it has nowhere to go from them."""
    seen = [point for point in COUNTED[gpu] if point.fitted]
    fitted = constants.shipped(gpu).l2
    assert l2_fit.fit(seen, gpu, fitted, steps=(1.03,)) == fitted
