"""Configs timed against each other, and the results files that it changes."""

import pytest
import torch
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import results_file, sources, space
from tritonmm.autotune.studies import contest
from tritonmm.config import Config
from tritonmm.orders import SwizzleMerge
from tritonmm.selection import choose

RESULTS = "autotune/results/h200-l2.csv"


def test_every_round_runs_each_arm_once_and_in_another_order():
    ran = []

    def arm(name, times):
        def replay(seconds):
            ran.append(name)
            return next(times)

        return replay

    arms = {"a": arm("a", iter([3e-6, 1e-6, 2e-6])), "b": arm("b", iter([5e-6, 9e-6, 7e-6]))}
    found = contest.contest(arms, 3, seconds=0.001, rest=lambda seconds: None)
    assert found == pytest.approx({"a": 2.0, "b": 7.0})
    assert all(sorted(ran[i : i + 2]) == ["a", "b"] for i in (0, 2, 4))


def test_rounds_differ_in_their_order():
    ran = []
    arms = {name: lambda seconds, name=name: ran.append(name) or 1e-6 for name in "abcdef"}
    contest.contest(arms, 4, seconds=0.001, rest=lambda seconds: None)
    assert len({tuple(ran[i : i + 6]) for i in range(0, 24, 6)}) == 4


def test_a_results_file_is_read_and_written_without_loss(tmp_path):
    about, columns, rows = results_file.read(RESULTS)
    results_file.write(tmp_path / "x.csv", about, columns, rows)
    with open(RESULTS, encoding="utf-8") as given, open(tmp_path / "x.csv", encoding="utf-8") as written:
        assert given.read().replace("relayout", "repack") == written.read()


def test_a_row_names_its_problem_and_config():
    row = {"m": "100", "n": "64", "k": "32", "batch": "1", "dtype": "fp16", "layout": "tn", "kernel": "hopper"}
    row |= {"block_m": "64", "persistent": "True", "order": "swizzle-merge:3", "cluster": "", "num_stages": ""}
    problem, config = results_file.product(row)
    assert problem == space.problem(100, 64, 32, dtype="fp16", layout="tn")
    assert config == Config("hopper", block_m=64, persistent=True, order=SwizzleMerge(3))


@pytest.mark.parametrize(
    "wrong", [{"m": "x"}, {"order": "sideways"}, {"kernel": "cutlass"}, {"num_stages": "0"}], ids=str
)
def test_a_row_that_is_no_trial_is_refused(wrong):
    row = {"m": "1", "n": "1", "k": "1", "batch": "1", "dtype": "bf16", "layout": "nn"}
    with pytest.raises(ValueError, match=r".+"):
        results_file.product(row | wrong)


def refuse(error):
    """A graph of torch's that cannot be captured."""

    def capture(launch, sets):
        raise error

    return capture


@pytest.mark.parametrize("waits", [False, True], ids=["never waits", "waits"])
def test_a_loop_of_torchs_over_the_groups_is_a_refusal_before_anything_is_captured(waits, monkeypatch):
    """A capture that waits for the device is broken, and so is what follows in its process."""
    modes, captured = ["default"], []

    def grouped_mm(a, b, offs, out_dtype):
        if waits and modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", grouped_mm)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(sources, "GraphReplay", lambda launch, sets: captured.append(launch))
    problem = space.problem(64, 32, 32, dtype="fp16", ragged="m", groups=2)
    sets = [space.operands(problem, torch.device("cpu"))]
    said = sources.torch_replay(problem, sets, space.keywords(problem, torch.device("cpu")))[1]
    assert said == ("torch refused: called a synchronizing CUDA operation" if waits else "")
    assert len(captured) == (0 if waits else 1)
    assert modes == ["default", "error", "default"]


def test_torchs_refusal_is_told_but_no_lack_of_memory(monkeypatch):
    problem = space.problem(2049, 64, 128)
    monkeypatch.setattr(sources, "GraphReplay", refuse(RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")))
    assert sources.torch_replay(problem, [], {}) == (None, "torch refused: CUBLAS_STATUS_NOT_SUPPORTED")
    monkeypatch.setattr(sources, "GraphReplay", refuse(torch.OutOfMemoryError("full")))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        sources.torch_replay(problem, [], {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU")
def test_without_a_gpu_there_is_nothing_to_time():
    found = CliRunner().invoke(contest.main, [RESULTS])
    assert found.exit_code == 1
    assert "GPU" in found.output


@pytest.mark.gpu
def test_the_slower_of_two_configs_is_found(device):
    problem = space.problem(2048, 2048, 2048)
    good = Config(block_m=128, block_n=128, block_k=64, num_stages=3, num_warps=8)
    bad = Config(block_m=16, block_n=16, block_k=16, num_stages=2, num_warps=4)
    times = contest.of_problem(problem, [bad, good], 3, gpus.of_device(device.index))
    assert times[good] < times[bad] / 2
    assert times[None] > 0


@pytest.mark.gpu
def test_what_torch_refuses_is_timed(device):
    """cuBLAS has no products of odd M with scales of 128-blocks."""
    problem = space.problem(2049, 512, 512, dtype="fp8-block")
    (trial,) = contest.trials(problem, [choose(problem, gpus.of_device(device.index))], 1, gpus.of_device(device.index))
    assert (trial.status, trial.torch_us) == ("ok", None)
    assert trial.time_us > 0


@pytest.mark.gpu
def test_what_cannot_run_is_a_row_and_the_others_are_timed(device):
    good, illegal = Config(order=SwizzleMerge(1)), Config(block_m=256, block_n=256, block_k=128, num_stages=8)
    problem = space.problem(512, 512, 512)
    ran = contest.trials(problem, [good, illegal], 1, gpus.of_device(device.index))
    assert [(trial.config, trial.status) for trial in ran] == [(good, "ok"), (illegal, "failed")]
    assert ran[0].time_us > 0
    assert ran[1].message
