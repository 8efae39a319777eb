"""Counters: what is read out of the profiler's output, what is refused, and what a failed run leaves."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch
from click.testing import CliRunner

from tritonmm import gpu, orders
from tritonmm.autotune.measuring import counters, sources, space
from tritonmm.autotune.measuring import ncu_child as once
from tritonmm.autotune.measuring.counters import CountersError, count, join
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.measure import Times
from tritonmm.autotune.measuring.trial import COLUMNS, Counted, problem_json
from tritonmm.autotune.tuner.store import Store
from tritonmm.autotune.tuner.sweep import sweep
from tritonmm.cli import main
from tritonmm.config import Config
from tritonmm.plan import INTERPRETED

PROBLEMS = [space.problem(m, 64, 64) for m in (100, 200)]
CONFIGS = [Config(block_m=32, block_n=32, block_k=32, order=orders.SwizzleMerge(f)) for f in (1, 2)]
PAIRS = [(problem, config) for problem in PROBLEMS for config in CONFIGS]

# As ncu prints it: two products, the first of two kernels.
OUTPUT = """\
==PROF== Connected to process 2583 (/usr/bin/python3.12)
compiling, says the child, and "quotes" it
==PROF== Profiling "repack_kernel" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "hopper_kernel" - 1: 0%....50%....100% - 3 passes
==PROF== Profiling "trial_marker" - 2: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 2583
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"""

VALUES = {
    "gpu__time_duration.sum": ("ns", "12,400"),
    "dram__bytes_read.sum": ("byte", "1,048,576"),
    "dram__bytes_write.sum": ("byte", "2,816"),
    "lts__t_sectors_srcunit_tex_op_read.sum": ("sector", "65,536"),
    "lts__t_sectors_srcunit_ltcfabric.sum": ("sector", "1,000"),
    "lts__t_sectors_op_read.sum": ("sector", "70,000"),
    "lts__t_sectors_op_read_lookup_hit.sum": ("sector", "35,000"),
    "lts__t_sectors_op_read_lookup_miss.sum": ("sector", "35,000"),
}

ONE = Counted(
    us=12.4, kernels=1, dram_read_bytes=1_048_576, dram_write_bytes=2816, l2_read_bytes=65_536 * 32,
    fabric_bytes=32_000, lookups=70_000, hits=35_000, misses=35_000,
)  # fmt: skip


def kernel(number, name, grid="(132, 1, 1)", **values) -> str:
    """One kernel as ncu prints it, a line a metric."""
    printed = {metric: values.get(metric.split(".")[0], value) for metric, value in VALUES.items()}
    return "".join(
        f'"{number}","2583","python3.12","127.0.0.1","{name}","1","7","(384, 1, 1)","{grid}","0","9.0",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}"\n'
        for metric, (unit, value) in printed.items()
    )


def marker(number, index) -> str:
    return kernel(number, "trial_marker", f"({index + 1}, 1, 1)", gpu__time_duration=("ns", "1,000"))


TWO_TRIALS = (
    OUTPUT + kernel(0, "repack_kernel") + kernel(1, "hopper_kernel") + marker(2, 0)
    + kernel(3, "matmul_kernel(float *, int)") + marker(4, 1)
)  # fmt: skip


def read(text) -> dict[int, Counted]:
    return {index: counters._counted(kernels) for index, kernels in counters._trials(text).items()}


def test_bytes_are_summed_over_the_kernels_of_a_trial():
    twice = {name: 2 * value for name, value in asdict(ONE).items()}
    assert read(TWO_TRIALS) == {0: Counted(**twice), 1: ONE}
    assert ONE.hit_rate == 0.5


def test_output_that_was_cut_anywhere_gives_whole_trials_or_none():
    whole = read(TWO_TRIALS)
    seen = set()
    for cut in range(len(TWO_TRIALS)):
        found = read(TWO_TRIALS[:cut])
        assert found.items() <= whole.items(), f"cut at {cut}: {TWO_TRIALS[:cut][-80:]!r}"
        seen.add(len(found))
    assert seen == {0, 1, 2}


def test_a_marker_names_its_trial_by_its_grid():
    text = OUTPUT + kernel(0, "matmul_kernel") + marker(1, 1233).replace("(1234, 1, 1)", "(1,234, 1, 1)")
    assert list(read(text)) == [1233]
    assert once.trial_marker.fn.__name__ == counters.MARKER


def test_columns_that_another_ncu_names_otherwise_are_an_error():
    with pytest.raises(CountersError, match="Grid Size"):
        read(TWO_TRIALS.replace('"Grid Size"', '"Launch"'))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lts__t_sectors_op_read_lookup_hit": ("sector", "70,700")}, r"hit rate is 101\.0%"),
        ({"lts__t_sectors_op_read": ("sector", "0")}, "hit rate is 35000 of 0"),
        ({"dram__bytes_read": ("byte", "-1")}, r"dram__bytes_read\.sum of matmul_kernel is '-1'"),
        ({"dram__bytes_read": ("byte", "nan")}, "'nan'"),
        ({"dram__bytes_write": ("byte", "inf")}, "'inf'"),
        ({"dram__bytes_write": ("", "n/a")}, "'n/a'"),
        ({"gpu__time_duration": ("ns", "0")}, r"gpu__time_duration\.sum is 0"),
        ({"dram__bytes_read": ("Mbyte", "1.05")}, "in 'Mbyte'; it must be in byte"),
    ],
    ids=["rate above 100", "no lookups", "negative", "nan", "infinite", "not available", "no time", "unit"],
)
def test_what_no_hardware_counts_is_refused_and_named(values, says):
    with pytest.raises(ValueError, match=says):
        read(OUTPUT + kernel(0, "matmul_kernel", **values) + marker(1, 0))


def test_a_kernel_that_lacks_a_counter_is_refused():
    lines = kernel(0, "matmul_kernel").splitlines(keepends=True)
    with pytest.raises(ValueError, match=r"gpu__time_duration\.sum of matmul_kernel is missing"):
        read(OUTPUT + "".join(lines[1:]) + marker(1, 0))


def test_a_trial_whose_kernels_were_not_seen_is_refused():
    with pytest.raises(ValueError, match="saw no kernel"):
        read(OUTPUT + marker(0, 0))


FAKE = """\
#!{python} -S
import json, os, sys, time
asked, log = (sys.argv[i] for i in (-2, -1))
found = json.load(open(asked))
first, count = found["first"], len(found["trials"])
def event(text):
    with open(log, "a") as file:
        file.write(text + "\\n")
def run(*indices):
    for index in indices:
        event(f"begin {{index}}")
        print(({one!r} + {marker!r}).replace("INDEX", str(index + 1)).replace("NUMBER", str(index)), end="", flush=True)
print({header!r}, end="", flush=True)
with open({calls!r}, "a") as file:
    file.write(json.dumps({{"argv": sys.argv, "found": found}}) + "\\n")
{body}
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """Puts an ncu on PATH that does `body`, and returns what it was called with."""
    calls = tmp_path / "calls"

    def install(body: str):
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir(exist_ok=True)
        one, end = kernel("NUMBER", "matmul_kernel"), kernel("NUMBER.5", "trial_marker", "(INDEX, 1, 1)")
        parts = {"python": sys.executable, "calls": str(calls), "header": OUTPUT, "one": one, "marker": end}
        program.write_text(FAKE.format(body=body, **parts))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return lambda: [json.loads(line) for line in calls.read_text().splitlines()]

    return install


@pytest.fixture
def no_ncu(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(counters, "PLACES", ())


def test_every_pair_is_counted_by_one_process(fake_ncu):
    calls = fake_ncu('run(*range(count)); event("finished")')
    assert count(PAIRS) == [ONE] * 4
    (call,) = calls()
    assert call["found"]["trials"] == [[problem_json(problem), config.to_json()] for problem, config in PAIRS]
    options = call["argv"][1 : call["argv"].index(sys.executable)]
    assert options[options.index("--profile-from-start") + 1] == "off"
    assert options[options.index("--metrics") + 1] == ",".join(counters.METRICS)


def test_nothing_to_count_needs_no_profiler(no_ncu):
    assert count([]) == []


def test_a_table_order_is_refused(fake_ncu):
    fake_ncu("")
    with pytest.raises(ValueError, match="no spelling"):
        count([(PROBLEMS[0], Config(order=orders.Table([[0, 0]])))])


def test_a_missing_profiler_is_said(no_ncu):
    with pytest.raises(CountersError, match="ncu, which was not found; put it on PATH"):
        count(PAIRS)


def test_missing_permission_is_said(fake_ncu):
    fake_ncu('event("begin 0"); print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"); sys.exit(1)')
    with pytest.raises(CountersError, match="only administrators"):
        count(PAIRS)


def test_a_child_that_never_begins_is_said_with_its_error(fake_ncu):
    fake_ncu('print("Traceback\\nModuleNotFoundError: No module named torch", file=sys.stderr); sys.exit(1)')
    with pytest.raises(CountersError, match="ModuleNotFoundError: No module named torch"):
        count(PAIRS)


def test_a_profiler_that_profiles_nothing_is_said(fake_ncu):
    fake_ncu('event("begin 0"); event("finished"); print("==WARNING== No kernels were profiled.")')
    with pytest.raises(CountersError, match="No kernels were profiled"):
        count(PAIRS)


def test_a_crash_costs_the_trial_that_crashed_alone(fake_ncu):
    calls = fake_ncu(
        'if first: run(*range(first, first + count)); event("finished")\n'
        'else: run(0); event("begin 1"); print("==ERROR== The application returned an error code (11)."); sys.exit(11)'
    )
    said = []
    assert count(PAIRS, warn=said.append) == [ONE, None, ONE, ONE]
    assert [call["found"]["first"] for call in calls()] == [0, 2]
    assert len(said) == 1
    assert str(CONFIGS[1]) in said[0]
    assert "error code (11)" in said[0]


def test_crashes_without_end_are_given_up(fake_ncu):
    calls = fake_ncu('event(f"begin {first}"); sys.exit(11)')
    said = []
    assert count(PAIRS * 3, warn=said.append) == [None] * 12
    assert len(calls()) == counters.RESTARTS + 1
    assert "8 trials after it are not counted" in said[-1]


def test_a_profiler_that_hangs_is_ended_and_what_it_said_is_kept(fake_ncu):
    fake_ncu('run(0, 1); event("begin 2"); time.sleep(600)')
    said = []
    assert count(PAIRS[:3], seconds=1, warn=said.append) == [ONE, ONE, None]
    assert "nothing happened for 2 seconds" in said[0]


def test_trials_that_the_output_lacks_are_said(fake_ncu):
    fake_ncu('run(0); event("begin 1"); event("begin 2"); event("begin 3"); event("finished")')
    said = []
    assert count(PAIRS, warn=said.append) == [ONE, None, None, None]
    assert len(said) == 1
    assert f"{CONFIGS[1]} on {PROBLEMS[0]} and 2 more" in said[0]


def test_a_trial_that_raised_is_said(fake_ncu):
    fake_ncu('run(0); event("begin 1"); event("failed 1 OutOfMemoryError: so much"); run(2, 3); event("finished")')
    said = []
    assert count(PAIRS, warn=said.append) == [ONE, None, ONE, ONE]
    assert said == [f"not counted: {CONFIGS[1]} on {PROBLEMS[0]}: OutOfMemoryError: so much"]


def test_an_impossible_value_is_said_by_trial(fake_ncu):
    fake_ncu('run(0); event("begin 1"); print({!r}, end=""); run(2, 3); event("finished")'.format(
        kernel(100, "matmul_kernel", lts__t_sectors_op_read_lookup_hit=("sector", "700,000")) + marker(101, 1)
    ))  # fmt: skip
    said = []
    assert count(PAIRS, warn=said.append) == [ONE, None, ONE, ONE]
    assert said == [
        f"not counted: {CONFIGS[1]} on {PROBLEMS[0]}: the hit rate is 1000.0%; it must be within 0% and 100%"
    ]


class Scripted:
    """A source that stands for a GPU."""

    source = "gpu"
    regime = "burst"
    gpu = gpu.spec("h200")
    environment = Environment("a", "b", "c", "d", "e", "f", "g", "2026-11-20")

    def __init__(self, regime="burst"):
        pass

    def error_ratio(self, problem, config):
        return 2.0 if (problem, config) == PAIRS[1] else 0.5

    def times(self, problem, config):
        return Times(10.0, 25.0)

    def alive(self):
        return True


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        yield store


def swept(store):
    return [t for t, _ in sweep(PROBLEMS, CONFIGS, store, Scripted())]


def test_counters_join_what_ran_and_stay_in_the_store(store, fake_ncu):
    fake_ncu('run(*range(count)); event("finished")')
    timed = swept(store)
    joined = join(timed, store, Scripted.environment)
    assert joined == [replace(t, counted=ONE if t.status == "ok" else None) for t in timed]
    assert [t.status for t in joined] == ["ok", "wrong", "ok", "ok"]
    assert swept(store) == joined


def test_a_continued_sweep_counts_only_what_has_no_counters(store, fake_ncu):
    calls = fake_ncu('run(0); event("begin 1"); event("failed 1 RuntimeError: no"); run(2); event("finished")')
    join(swept(store), store, Scripted.environment, warn=lambda _: None)
    fake_ncu('run(*range(count)); event("finished")')
    assert [t.counted for t in join(swept(store), store, Scripted.environment)] == [ONE, None, ONE, ONE]
    join(swept(store), store, Scripted.environment)
    first, second = calls()
    assert len(first["found"]["trials"]) == 3
    assert second["found"]["trials"] == [[problem_json(PAIRS[2][0]), PAIRS[2][1].to_json()]]


ARGS = [
    "sweep", "--m", "100,200", "--n", "64", "--k", "64", "--layout", "nt", "--blocks", "32x32x32", "--stages", "3",
    "--warps", "8", "--factors", "1,2", "--counters",
]  # fmt: skip


def call(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sources, "GpuSource", Scripted)
    files = ["--store", str(tmp_path / "s.sqlite"), "--csv", str(tmp_path / "r.csv")]
    return CliRunner().invoke(main, [*ARGS, *files])


def test_sweep_counts_into_the_csv(monkeypatch, tmp_path, fake_ncu):
    fake_ncu('run(*range(count)); event("finished")')
    result = call(monkeypatch, tmp_path)
    assert result.exit_code == 1, result.output  # a trial is wrong
    assert "4 trials: 3 ok, 1 wrong; counters of 3" in result.stdout
    lines = [line.split(",") for line in (tmp_path / "r.csv").read_text().splitlines() if not line.startswith("#")]
    read = [row[COLUMNS.index("counted_dram_read_bytes")] for row in lines[1:]]
    assert read == ["1048576", "", "1048576", "1048576"]


def test_without_a_profiler_the_times_stay(monkeypatch, tmp_path, no_ncu):
    result = call(monkeypatch, tmp_path)
    assert result.exit_code == 1
    (said,) = [line for line in result.stderr.splitlines() if line.startswith("tritonmm:")]
    assert "ncu, which was not found" in said
    assert "the times are kept" in said
    assert (tmp_path / "r.csv").read_text().count(",10.0,25.0,") == 3


@pytest.mark.skipif(not INTERPRETED, reason="times are measured")
def test_a_model_is_not_counted():
    result = CliRunner().invoke(main, [*ARGS, "--gpu", "h200"])
    assert result.exit_code == 2
    assert "--counters: counting needs a GPU" in result.stderr


@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")
def test_the_profiler_looks_at_the_second_launch_and_its_marker_alone(tmp_path, monkeypatch):
    seen = []
    real = once.plan_for

    def watched(problem, config, device):
        if config == CONFIGS[1]:
            raise RuntimeError("out of\nresource")
        plan = real(problem, config, device)
        return lambda a, b, out: seen.append(problem.m) or plan(a, b, out)

    class Marker:
        def __getitem__(self, grid):
            return lambda **_: seen.append(grid)

    monkeypatch.setattr(once, "plan_for", watched)
    monkeypatch.setattr(once, "trial_marker", Marker())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: seen.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: seen.append("stop"))
    trials = [(problem_json(problem), config.to_json()) for problem, config in PAIRS[:3]]
    (tmp_path / "asked").write_text(json.dumps({"first": 5, "seconds": 600, "trials": trials}))
    once.main(tmp_path / "asked", tmp_path / "log", torch.device("cpu"))
    assert seen == [(1,), 100, "start", 100, (6,), "stop", 200, "start", 200, (8,), "stop"]
    assert (tmp_path / "log").read_text().splitlines() == [
        "begin 5", "begin 6", "failed 6 RuntimeError: out of resource", "begin 7", "finished",
    ]  # fmt: skip


@pytest.mark.gpu
def test_the_gpu_counts_at_least_what_must_be_read():
    square, ragged = space.problem(4096, 4096, 4096), space.problem(4095, 4095, 4095)
    tile = {"block_m": 128, "block_n": 256, "block_k": 64, "num_stages": 3}
    hopper = {"kernel": "hopper", "persistent": True, "num_stages": 4} | {k: tile[k] for k in tile if k[0] == "b"}
    found = count(
        [
            (square, Config(**tile, order=orders.RowMajor())),
            (square, Config(**hopper)),
            (ragged, Config(**hopper, repack="ab")),
        ]
    )
    for counted, problem in zip(found, (square, square, ragged), strict=True):
        assert counted is not None
        operands = (problem.m + problem.n) * problem.k * problem.element_bytes
        assert operands * 0.99 <= counted.dram_read_bytes <= counted.l2_read_bytes * 1.05, counted
        assert 0 < counted.hit_rate < 1, counted
        assert 50 < counted.us < 5000, counted
    assert [counted.kernels for counted in found] == [1, 1, 2]
