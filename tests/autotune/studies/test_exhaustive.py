"""Every config that `select` chooses from is timed, into a file that `regret` reads."""

import json

import pytest
import torch
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import precompile, space
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.studies import exhaustive, regret
from tritonmm.config import Config
from tritonmm.orders import SwizzleMerge
from tritonmm.selection import timed

PRODUCT = {"family": "small", "m": 48, "n": 72, "k": 40, "batch": 1, "layout": "nt", "dtype": "bf16"}


def suite(path, *entries):
    path.write_text(json.dumps(entries), encoding="utf-8")
    return str(path)


def run(*arguments):
    return CliRunner().invoke(exhaustive.main, list(arguments))


def test_what_is_no_suite_is_refused(tmp_path):
    result = run("--suite", suite(tmp_path / "x.json", PRODUCT | {"m": 0}), "--csv", str(tmp_path / "x.csv"))
    assert result.exit_code == 1
    assert "m is 0; it must be a whole number from 1" in result.output
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU")
def test_without_a_gpu_there_is_nothing_to_time(tmp_path):
    result = run("--suite", suite(tmp_path / "x.json", PRODUCT), "--csv", str(tmp_path / "x.csv"))
    assert (result.exit_code, "torch sees none" in result.output) == (1, True)


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = suite(tmp_path / "x.json", PRODUCT)
    result = run("--suite", asked, "--csv", f"{asked}/x.csv")
    assert (result.exit_code, "x.json" in result.output) == (2, True)
    assert "Traceback" not in result.output


def refuse(problem, configs, rounds, gpu, idle):
    raise RuntimeError("torch has no such product")


def taken(devices):
    """In place of choosing a GPU."""


def test_an_error_names_its_product(monkeypatch):
    monkeypatch.setattr(exhaustive, "_take", taken)
    monkeypatch.setattr(exhaustive.contest, "trials", refuse)
    problem = space.problem(48, 72, 40)
    with pytest.raises(RuntimeError, match=f"{problem}: torch has no such product"):
        list(exhaustive.measured({problem: [Config()]}, 1, gpus.spec("h200"), 1))


@pytest.mark.parametrize("fails", [False, True])
def test_the_file_has_each_trial_and_is_read_by_regret(fails, tmp_path, monkeypatch):
    """Two GPUs that are not there: which config took how long is made up, the rest is as it is with them."""
    h200 = gpus.spec("h200")
    asked = []

    def measured(configs, rounds, gpu, count):
        asked.append((rounds, count))
        for p, found in configs.items():
            wrong = Trial(p, found[0], "gpu", "burst", "wrong", "2026-01-01T00:00:00", error_ratio=7.0)
            right = [
                Trial(p, config, "gpu", "burst", "ok", "2026-01-01T00:00:00", 1.0 + i, 2.0)
                for i, config in enumerate(found)
            ]
            yield [wrong, *right[1:]]
            assert list(regret.read(path)[0]) == [p], "what is killed later has left this"
        if fails:
            raise RuntimeError("64x64x64 nt bf16: a process died")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(gpus, "of_device", lambda device: h200)
    monkeypatch.setattr(exhaustive, "precompile_all", lambda pairs, gpu: asked.append(len(pairs)))
    monkeypatch.setattr(exhaustive, "measured", measured)
    path = tmp_path / "x.csv"
    result = run("--suite", suite(tmp_path / "x.json", PRODUCT, PRODUCT), "--csv", str(path), "--rounds", "5")
    assert result.exit_code == int(fails), result.output
    problem = space.problem(48, 72, 40, layout="nt")
    everything = list(timed(problem, h200))
    assert asked == [len(everything), (5, 2)], "a product that a suite has twice is timed once"
    assert f"{problem}  {everything[0]}: wrong" in result.output
    assert f"1/1  {problem}  2.00 us  {everything[1]}" in result.output
    found, about = regret.read(path)
    assert found == {problem: {config: 1.0 + i for i, config in enumerate(everything) if i}}
    assert (about["gpu"], about["gpus"], about["suite"]) == ("NVIDIA H200", "2", "x.json")
    assert "5 rounds" in about["regime"]
    if fails:
        said = f"64x64x64 nt bf16: a process died; {path} has the {len(everything)} trials before that"
        assert said in " ".join(result.output.split())


def test_pairs_that_launch_the_same_kernels_are_compiled_by_one_process(monkeypatch):
    submitted = []

    class Pool:
        def __init__(self, processes, context): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def submit(self, function, pairs, gpu):
            submitted.append(pairs)
            return Future()

    class Future:
        def result(self): ...

    monkeypatch.setattr(precompile, "ProcessPoolExecutor", Pool)
    one, other = space.problem(64, 64, 64), space.problem(128, 64, 64)
    odd = space.problem(65, 64, 64)
    configs = [Config("hopper", persistent=True, order=SwizzleMerge(f)) for f in (1, 2)]
    precompile.precompile_all([(p, c) for p in (odd, one, other) for c in configs], gpus.spec("h200"))
    assert [{(p.m, c.order.factors[0]) for p, c in pairs} for pairs in submitted] == [
        {(64, 1), (64, 2), (128, 1), (128, 2)},
        {(65, 1), (65, 2)},
    ]


@pytest.mark.gpu
def test_every_config_is_checked_and_timed(tmp_path):
    path = tmp_path / "x.csv"
    small = PRODUCT | {"m": 33, "n": 7, "k": 5, "layout": "nn"}  # unaligned: few tiles are tried
    result = run("--suite", suite(tmp_path / "x.json", small), "--csv", str(path), "--rounds", "1")
    assert result.exit_code == 0, result.output
    problem, gpu = space.problem(33, 7, 5, layout="nn"), gpus.of_device(0)
    found, _ = regret.read(path)
    assert found.keys() == {problem}
    assert found[problem].keys() == timed(problem, gpu).keys()
