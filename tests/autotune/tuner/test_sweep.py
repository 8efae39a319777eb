"""The sweep: every outcome is a row, and an interrupted sweep continues."""

import math
from dataclasses import replace

import pytest

from tritonmm import families, gpu, orders
from tritonmm.autotune.measuring import space, verify
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import Times
from tritonmm.autotune.measuring.sources import GpuSource, ModelSource
from tritonmm.autotune.measuring.space import Space
from tritonmm.autotune.tuner.store import Store
from tritonmm.autotune.tuner.sweep import DeviceLostError, best_of, run, sweep, with_factor_one
from tritonmm.config import Config
from tritonmm.model import l2
from tritonmm.plan import INTERPRETED, bind
from tritonmm.selection import choose

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")

H200 = gpu.spec("h200")
PROBLEMS = [space.problem(m, 256, 128) for m in (100, 256)]
SPACE = Space(
    blocks=((32, 32, 32), (64, 32, 32)),
    stages=(2, 3),
    warps=(4,),
    tile_orders=(orders.RowMajor(), orders.SwizzleMerge(2), orders.Hilbert()),
)
CONFIGS = list(SPACE)


class Scripted:
    """A source that answers from a function and writes down what it was asked."""

    source = "gpu"
    regime = "burst"
    gpu = H200
    environment = Environment("a", "b", "c", "d", "e", "f", "g", "2026-11-20")

    def __init__(self, ratio=lambda problem, config: 0.5):
        self.ratio = ratio
        self.checked = []
        self.timed = []
        self.lost = False

    def error_ratio(self, problem, config):
        self.checked.append((problem, config))
        return self.ratio(problem, config)

    def times(self, problem, config):
        self.timed.append((problem, config))
        return Times(10.0 * config.num_stages, 25.0)

    def alive(self):
        return not self.lost


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        yield store


def swept(source, store, problems=PROBLEMS, configs=CONFIGS):
    return list(sweep(problems, configs, store, source))


def test_every_pair_is_a_row_and_is_in_the_store(store):
    source = Scripted()
    trials = swept(source, store)
    asked = [(problem, config) for problem in PROBLEMS for config in CONFIGS]
    assert [(t.problem, t.config) for t, _ in trials] == source.checked == source.timed == asked
    assert all(new and t.status == "ok" for t, new in trials)
    assert len(store) == len(asked)


def test_sweeping_again_measures_nothing(store):
    first = swept(Scripted(), store)
    again = Scripted()
    second = swept(again, store)
    assert [t for t, _ in second] == [t for t, _ in first]
    assert not any(new for _, new in second)
    assert again.checked == []


def test_a_larger_sweep_measures_only_what_is_new(store):
    swept(Scripted(), store, configs=CONFIGS[:5])
    larger = Scripted()
    swept(larger, store)
    assert larger.checked == [(problem, config) for problem in PROBLEMS for config in CONFIGS[5:]]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_sweep_continues(tmp_path, stop):
    def interrupted(problem, config):
        if (problem, config) == (PROBLEMS[0], CONFIGS[7]):
            raise stop
        return 0.5

    with Store(tmp_path / "s.sqlite") as store, pytest.raises(stop):
        swept(Scripted(interrupted), store)
    with Store(tmp_path / "s.sqlite") as store:
        assert len(store) == 7
        source = Scripted()
        trials = swept(source, store)
        assert len(trials) == len(store) == len(PROBLEMS) * len(CONFIGS)
        assert len(source.checked) == len(trials) - 7


def test_an_abandoned_sweep_keeps_what_it_yielded(store):
    trials = sweep(PROBLEMS, CONFIGS, store, Scripted())
    next(trials)
    next(trials)
    trials.close()
    assert len(store) == 2


@interpreted
@pytest.mark.parametrize(
    "problem",
    [space.problem(500, 96, 64, ragged="m", groups=7), space.problem(96, 64, 500, layout="tn", ragged="k", groups=7)],
    ids=str,
)
def test_groups_are_checked_and_modelled_without_a_gpu(problem, store):
    spellings = ("groups/row-major", "largest-groups/swizzle-merge:2", "swizzle-merge:2")
    wanted = [Config("tile", 32, 32, 32, 2, 4, persistent=True, order=orders.parse(each)) for each in spellings]
    trials = [trial for trial, _ in swept(ModelSource(H200), store, [problem], wanted)]
    assert [trial.status for trial in trials] == ["ok", "ok", "illegal"], trials
    for one in trials[:2]:
        assert one.time_us > 0
        assert one.dram_write_bytes == problem.output_bytes
        assert store.find(problem, one.config, ModelSource(H200).environment, "model", "none") == one


def test_row_major_order_of_groups_is_that_of_each_group():
    problem, config = space.problem(500, 96, 64, ragged="m", groups=7), replace(CONFIGS[0], persistent=True)
    found = [
        replace(run(problem, config, Scripted()), config=replace(config, order=orders.parse(each)), time_us=1.0)
        for each in ("groups/swizzle-merge:1", "largest-groups/row-major", "largest-groups/swizzle-merge:4")
    ]
    assert with_factor_one(found[2], found) == found[1]


def test_illegal_is_a_row_with_the_reason_and_nothing_runs():
    source = Scripted()
    config = Config(block_m=48)
    trial = run(PROBLEMS[0], config, source)
    assert (trial.status, trial.message) == ("illegal", config.fits(PROBLEMS[0], H200).reason)
    assert (trial.time_us, trial.error_ratio, trial.hit_rate) == (None, None, None)
    assert source.checked == source.timed == []


@pytest.mark.parametrize("ratio", [1.0001, math.inf, math.nan])
def test_a_wrong_result_is_a_row_and_is_never_timed(ratio):
    source = Scripted(lambda problem, config: ratio)
    trial = run(PROBLEMS[0], CONFIGS[0], source)
    assert trial.status == "wrong"
    assert trial.error_ratio == ratio or math.isnan(ratio)
    assert trial.time_us is None
    assert source.timed == []


def test_an_error_on_the_bound_passes():
    assert run(PROBLEMS[0], CONFIGS[0], Scripted(lambda problem, config: 1.0)).status == "ok"


def test_an_exception_is_a_row_and_the_sweep_goes_on(store):
    def fails(problem, config):
        if config == CONFIGS[1]:
            raise RuntimeError("ptxas\n   said " + "x" * 1000)
        return 0.5

    trials = [t for t, _ in swept(Scripted(fails), store)]
    assert [t.status for t in trials].count("failed") == len(PROBLEMS)
    failed = trials[1]
    assert failed.status == "failed"
    assert failed.message.startswith("RuntimeError: ptxas said xxx")
    assert len(failed.message) <= 300
    assert failed.time_us is None
    assert trials[2].status == "ok"


def test_a_lost_gpu_stops_the_sweep_and_is_not_met_again(store):
    def faults(problem, config):
        if config == CONFIGS[3]:
            source.lost = True
            raise RuntimeError("an illegal memory access was encountered")
        return 0.5

    source = Scripted(faults)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        swept(source, store)
    assert len(store) == 4
    after = Scripted()
    trials = swept(after, store)
    assert [t.status for t, _ in trials].count("failed") == 1
    assert (PROBLEMS[0], CONFIGS[3]) not in after.checked


def test_rows_carry_the_models_traffic():
    trial = run(PROBLEMS[0], CONFIGS[0], Scripted())
    traffic = l2.of(PROBLEMS[0], CONFIGS[0], H200)
    assert trial.traffic_source == "model"
    assert (trial.dram_read_bytes, trial.dram_write_bytes) == (traffic.dram_read_bytes, traffic.dram_write_bytes)
    assert (trial.l2_read_bytes, trial.hit_rate) == (traffic.l2_read_bytes, traffic.hit_rate)


def test_best_is_the_fastest_that_was_timed():
    source = Scripted()
    trials = [run(PROBLEMS[0], config, source) for config in CONFIGS]
    fast = replace(trials[5], time_us=1.0)
    wrong = replace(trials[6], status="wrong", time_us=None)
    assert best_of([*trials[:5], fast, wrong]) == {PROBLEMS[0]: fast}
    assert best_of([wrong]) == {}


@pytest.mark.parametrize("row_major", [orders.RowMajor(), orders.SwizzleMerge(1)], ids=str)
def test_factor_one_is_row_major_of_the_same_config(row_major):
    source = Scripted()
    best = run(PROBLEMS[0], Config(num_stages=2), source)
    others = [
        run(PROBLEMS[0], Config(num_stages=3, order=row_major), source),
        run(PROBLEMS[1], Config(num_stages=2, order=row_major), source),
        best,
    ]
    wanted = run(PROBLEMS[0], Config(num_stages=2, order=row_major), source)
    assert with_factor_one(best, others) is None
    assert with_factor_one(best, [*others, wanted]) == wanted


@interpreted
def test_without_a_gpu_times_are_the_models_and_checks_are_real(store):
    trials = [t for t, _ in swept(ModelSource(H200), store)]
    for t in trials:
        assert (t.status, t.source, t.torch_us) == ("ok", "model", None)
        assert t.time_us == pytest.approx(families.family(t.config.kernel).estimate(t.config, t.problem, H200).us)
        assert 0 < t.error_ratio <= 1


@interpreted
def test_configs_that_the_interpreter_cannot_tell_apart_are_run_once(monkeypatch):
    seen = []
    monkeypatch.setattr(verify, "interpreted", lambda problem, config, gpu: seen.append((problem, config)) or 0.5)
    source = ModelSource(H200)
    for config in CONFIGS:
        for problem in PROBLEMS:
            assert run(problem, config, source).status == "ok"
    assert len(seen) == len(set(seen)) == len(PROBLEMS) * len(CONFIGS) // 2  # two numbers of stages


@interpreted
@pytest.mark.parametrize("num_warps", [4, 8])
def test_configs_are_checked_as_they_are(num_warps):
    """The persistent kernel needs 2 stages and at most 8 warps, and its epilogue depends on the warps."""
    config = Config("persistent", 64 * num_warps // 4, 64, 64, num_stages=2, num_warps=num_warps)
    trial = run(space.problem(200, 136, 104), config, ModelSource(H200))
    assert (trial.status, trial.message) == ("ok", "")
    assert 0 < trial.error_ratio <= 1


@interpreted
@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("hopper", space.problem(500, 256, 512)),
        ("grouped", space.problem(500, 96, 64, ragged="m", groups=7)),
        ("mixed_input", space.problem(20, 512, 256, dtype="bf16-int8")),
        ("exact", space.problem(200, 136, 104, dtype="fp32")),
    ],
)
def test_kernels_that_cannot_be_interpreted_are_not_checked(kernel, problem, store):
    config = choose(problem, H200, kernel)
    ((trial, _),) = swept(ModelSource(H200), store, [problem], [config])
    assert (trial.status, trial.error_ratio) == ("ok", None)
    assert trial.message == f"not checked: the {kernel} kernel does not run in Triton's interpreter"
    assert trial.time_us > 0
    assert store.find(problem, config, ModelSource(H200).environment, "model", "none") == trial


@interpreted
def test_a_kernel_that_computes_something_else_is_wrong(monkeypatch):
    def doubled(*args):
        plan = bind(*args)
        return lambda a, b, out: plan(a, b, out).mul_(1 + 2**-6)

    monkeypatch.setattr(verify, "bind", doubled)
    trial = run(PROBLEMS[0], CONFIGS[0], ModelSource(H200))
    assert trial.status == "wrong"
    assert 1 < trial.error_ratio < math.inf


@interpreted
def test_a_kernel_that_leaves_a_tile_out_is_wrong(monkeypatch):
    def partial(*args):
        plan = bind(*args)
        return replace(plan, grid=plan.grid - 1)

    monkeypatch.setattr(verify, "bind", partial)
    trial = run(PROBLEMS[0], CONFIGS[0], ModelSource(H200))
    assert (trial.status, trial.error_ratio) == ("wrong", math.inf)


@interpreted
def test_a_kernel_that_raises_has_failed(monkeypatch):
    def broken(*args):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(verify, "bind", broken)
    trial = run(PROBLEMS[0], CONFIGS[0], ModelSource(H200))
    assert (trial.status, trial.message) == ("failed", "RuntimeError: out of resource: shared memory")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_on_a_gpu_times_are_measured_beside_torch(store, dtype):
    problem = space.problem(500, 256, 512, dtype=dtype)
    tile_orders = (orders.RowMajor(), orders.SwizzleMerge(4), orders.SwizzleMerge(8), orders.Hilbert())
    configs = list(Space(blocks=((64, 128, 64),), stages=(3,), warps=(8,), tile_orders=tile_orders))
    for t, _ in swept(GpuSource("burst"), store, [problem], configs):
        assert (t.status, t.source, t.regime, t.message) == ("ok", "gpu", "burst", "")
        assert t.time_us > 0
        assert t.torch_us > 0


@interpreted
def test_a_tile_without_an_estimate_has_no_time():
    """It spills registers, for which the model has no time."""
    problem = space.problem(100, 333, 128, dtype="fp16", layout="nn")
    config = Config("tile", 64, 64, 64, num_stages=1, num_warps=2, order=orders.Morton())
    found = run(problem, config, ModelSource(gpu.spec("b300")))
    assert (found.status, found.time_us) == ("ok", None)
    assert "no estimate for a tile that spills registers" in found.message
    assert best_of([found]) == {}


@interpreted
def test_the_check_is_for_the_gpu_that_is_asked_for():
    """This tile is legal on an MI355X and not on an H200."""
    problem = space.problem(8, 333, 333, dtype="fp8-row-ieee", layout="tn")
    config = Config("tile", 32, 32, 32, num_stages=3, num_warps=1)
    found = run(problem, config, ModelSource(gpu.spec("mi355x")))
    assert (found.status, found.message) == ("ok", "")
