"""regret: what select chooses is judged by the rows of a sweep, and what they lack is said."""

import csv
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm import tuned
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring.trial import COLUMNS, Trial
from tritonmm.autotune.studies import contest, random_suite, regret
from tritonmm.config import Config
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem
from tritonmm.selection import estimated, timed

H200 = gpus.spec("h200")
PROBLEMS = (Problem.dense(4096, 4096, 4096, layout="nt"), Problem.dense(777, 1001, 3001), Problem.dense(64, 64, 64))


pytestmark = pytest.mark.usefixtures("user")


def trial(problem, config, us, status="ok"):
    return Trial(problem, config, "gpu", "burst", status, "2026-11-21T00:00:00+00:00", us)


def results(path, trials, gpu="NVIDIA H200", columns=COLUMNS):
    with path.open("w", newline="") as file:
        file.write(f"# gpu: {gpu}\n# source: gpu\n")
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(trial.row() for trial in trials)
    return path


def judged(path, way="model"):
    measured, _ = regret.read(path)
    return {r.problem: r for r in regret.regrets(measured, H200) if r.way == way}


def test_a_config_comes_out_of_a_results_file_as_it_went_in(tmp_path):
    trials = [trial(p, config, us=1.0 + i) for p in PROBLEMS for i, config in enumerate(timed(p, H200))]
    trials.append(trial(PROBLEMS[0], Config("hopper", 256, 256, 64, 3, 8, persistent=True, cluster="m"), 9.0))
    measured, about = regret.read(results(tmp_path / "x.csv", trials))
    assert about["gpu"] == "NVIDIA H200"
    found = [(problem, config, us) for problem, times in measured.items() for config, us in times.items()]
    assert sorted(found, key=str) == sorted(((t.problem, t.config, t.time_us) for t in trials), key=str)


def test_the_ratio_is_of_measured_times(tmp_path):
    problem = PROBLEMS[0]
    chosen = estimated(problem, H200).config
    best = replace(chosen, order=SwizzleMerge(5))
    wrong = replace(chosen, order=SwizzleMerge(6))
    trials = [trial(problem, chosen, 200.0), trial(problem, best, 150.0), trial(problem, wrong, 1.0, status="wrong")]
    found = judged(results(tmp_path / "x.csv", trials))[problem]
    assert (found.config, found.best, found.us, found.best_us, found.reached) == (chosen, best, 200.0, 150.0, 0.75)


def test_a_config_whose_order_was_not_measured_has_the_longest_time_of_its_other_orders(tmp_path):
    problem = PROBLEMS[0]
    chosen = estimated(problem, H200).config
    other = next(c for c in timed(problem, H200) if replace(c, order=chosen.order) != chosen)
    trials = [trial(problem, replace(chosen, order=SwizzleMerge(f)), us) for f, us in ((5, 150.0), (6, 160.0))]
    found = judged(results(tmp_path / "x.csv", [*trials, trial(problem, other, 120.0)]))[problem]
    assert (found.config, found.us, found.reached) == (chosen, 160.0, 0.75)
    assert judged(results(tmp_path / "x.csv", [trial(problem, other, 120.0)]))[problem].us is None


def test_of_repeated_rows_it_is_the_median(tmp_path):
    problem, config = PROBLEMS[0], estimated(PROBLEMS[0], H200).config
    path = results(tmp_path / "x.csv", [trial(problem, config, us) for us in (1.0, 9.0, 4.0)])
    assert judged(path)[problem].us == 4.0


def test_columns_that_older_files_lack_are_what_they_were(tmp_path):
    problem, config = PROBLEMS[0], Config()
    columns = [name for name in COLUMNS if name not in ("split_tail", "cluster", "repack")]
    path = results(tmp_path / "x.csv", [trial(problem, config, 1.0)], columns=columns)
    assert regret.read(path)[0] == {problem: {config: 1.0}}


def test_the_tables_are_what_this_machine_has(tmp_path):
    problem = PROBLEMS[0]
    winner = list(timed(problem, H200))[3]
    path = results(
        tmp_path / "x.csv", [trial(problem, c, 9.0 - i) for i, c in enumerate(list(timed(problem, H200))[:4])]
    )
    assert judged(path, "table")[problem].reached == 6 / 9
    tuned.publish([(problem, winner, 6.0)], H200)
    assert judged(path, "table")[problem].reached == 1.0
    assert judged(path, "model")[problem].reached == 6 / 9


def test_neighbours_are_the_other_problems_of_the_file(tmp_path):
    one, other = PROBLEMS[0], replace(PROBLEMS[0], m=4000)
    first, second = list(timed(one, H200))[:2]
    trials = [trial(p, c, us) for p, times in ((one, (9.0, 8.0)), (other, (8.0, 9.0))) for c, us in
              zip((first, second), times, strict=True)]  # fmt: skip
    found = judged(results(tmp_path / "x.csv", trials), "neighbours")
    assert found[one].config != second  # its own winner is not known to it
    assert found[other].best == first


def test_neighbours_may_be_of_other_files_and_what_they_replace_is_judged(tmp_path):
    """Of results or of a table; the problem's own row is not used."""
    one, other = PROBLEMS[0], replace(PROBLEMS[0], m=4000)
    first = estimated(one, H200).config
    second = replace(first, num_stages=first.num_stages - 1)
    path = results(tmp_path / "x.csv", [trial(one, first, 8.0), trial(one, second, 10.0)])
    known = results(tmp_path / "y.csv", [trial(one, second, 1.0), trial(other, second, 8.0)])
    tuned.publish([(one, second, 1.0), (other, second, 8.0)], H200, tmp_path / "h200.json")
    said = "neighbours replace 1 choices of the model, 1 measured: geometric mean of the speeds' ratios 0.800, worst"
    for neighbours in (known, tmp_path / "h200.json"):
        result = run(path, "--neighbours", neighbours)
        assert result.output.endswith(f"{said} 0.800 on {one}\n"), result.output
    alone = results(tmp_path / "z.csv", [trial(one, second, 1.0)])
    assert "replace" not in run(path, "--neighbours", alone).output


def test_one_way_alone_has_no_choices_that_are_replaced():
    config = estimated(PROBLEMS[0], H200).config
    for way in ("model", "neighbours"):
        *_, last = regret.lines(regret.regrets({PROBLEMS[0]: {config: 1.0}}, H200, (way,)))
        assert last == f"{way:<10} 1 of 1 problems: geometric mean 1.0000, worst 1.000 on {PROBLEMS[0]}"


def test_several_files_are_judged_together(tmp_path):
    paths = [results(tmp_path / f"{i}.csv", [trial(p, estimated(p, H200).config, 1.0)]) for i, p in enumerate(PROBLEMS)]
    assert "model      3 of 3 problems" in run(*paths).output


def run(path, *options):
    return CliRunner().invoke(regret.main, [str(path), *map(str, options)])


def test_the_command_says_the_mean_the_worst_and_what_is_missing(tmp_path):
    trials = []
    for problem, share in zip(PROBLEMS, (0.5, 0.98, None), strict=True):
        chosen = estimated(problem, H200).config
        trials.append(trial(problem, replace(chosen, num_stages=chosen.num_stages + 1), 10.0 * (share or 1)))
        if share:
            trials.append(trial(problem, chosen, 10.0))
    path = results(tmp_path / "x.csv", trials)
    result = run(path)
    assert result.exit_code == 0, result.output
    said = (
        f"2 of 3 problems: geometric mean 0.7000, worst 0.500 on {PROBLEMS[0]}; the others' configs were not measured"
    )
    assert f"model      {said}\n" in result.output
    assert f"model not measured     {estimated(PROBLEMS[2], H200).config}\n" in result.output
    assert f"{PROBLEMS[0]!s:<28} best      5.00 us  " in result.output


def test_results_of_two_gpus_are_refused(tmp_path):
    one = results(tmp_path / "x.csv", [trial(PROBLEMS[0], Config(), 1.0)])
    other = results(tmp_path / "y.csv", [trial(PROBLEMS[1], Config(), 1.0)], gpu="NVIDIA H100 80GB HBM3")
    result = CliRunner().invoke(regret.main, [str(one), str(other)])
    assert result.exit_code == 1
    assert "of several GPUs, NVIDIA H100 80GB HBM3, NVIDIA H200; judge one GPU at a time" in result.output


def test_the_gpu_is_the_results_unless_it_is_named(tmp_path):
    path = results(tmp_path / "x.csv", [trial(PROBLEMS[0], Config(), 1.0)], gpu="Voodoo 2")
    result = run(path)
    assert (result.exit_code, "'Voodoo 2'" in result.output) == (1, True)
    assert "hopper" not in run(path, "--gpu", "a100").output
    assert "unknown GPU" in run(path, "--gpu", "tpu").output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no row of status ok"),
        ("m,n,k\n1,2,3\n", "row 1 is not a trial's: 'status'"),
        (",".join(COLUMNS) + "\n", "no row of status ok"),
        ("\xff", "x.csv is not UTF-8 text"),
    ],
    ids=["empty", "another table", "no rows", "no text"],
)
@pytest.mark.parametrize("command", [regret.main, contest.main], ids=["regret", "contest"])
def test_what_is_no_results_file_is_said(tmp_path, command, content, says):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="latin-1")
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize(
    ("name", "value"),
    [("order", "zigzag"), ("block_m", "many"), ("m", "-4"), ("m", str(2**31)), ("persistent", "perhaps")],
)
def test_a_wrong_cell_names_its_row(tmp_path, name, value):
    path = results(tmp_path / "x.csv", [trial(PROBLEMS[0], Config(), 1.0)] * 2)
    rows = list(csv.DictReader(line for line in path.read_text().splitlines() if line[0] != "#"))
    rows[1][name] = value
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    result = run(path)
    assert result.exit_code == 1
    assert "row 2 is not a trial's" in result.output


def test_the_random_suite_is_what_its_command_prints():
    result = CliRunner().invoke(random_suite.main, [])
    assert result.output == (suite._SHIPPED / "random60.json").read_text()


@pytest.mark.parametrize(
    ("name", "options"), [("mixed420", ["--count", "420"]), ("mixed210", ["--count", "210", "--seed", "7"])]
)
def test_the_mixed_suites_are_what_their_command_prints(name, options):
    result = CliRunner().invoke(random_suite.main, ["--mixed", *options])
    assert result.output == (suite._SHIPPED / f"{name}.json").read_text()


def test_the_random_suite_is_what_it_says():
    entries = suite.load("random60")
    assert len(entries) == 60
    assert len(set(entries)) == 60
    public = {(e.m, e.n, e.k) for e in suite.load("public")}
    ragged = 0
    for e in entries:
        assert (e.m, e.n, e.k) not in public
        assert 16 <= e.m <= 16384
        assert 64 <= min(e.n, e.k)
        assert max(e.n, e.k) <= 16384
        assert 2 * e.m * e.n * e.k <= random_suite.FLOPS
        assert bool(e.problem().unaligned) == (e.family == "unaligned")
        ragged += bool(e.m % 16 and e.n % 16)
    assert ragged == 20
    assert {e.layout for e in entries} == {"nn", "nt"}
    for family in ("whole", "ragged", "unaligned"):
        layouts = [e.layout for e in entries if e.family == family]
        assert layouts.count("nn") == layouts.count("nt")
