"""`tritonmm serve-bench`: what it refuses, prints and writes, with a measurement that is made up."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.serving import compare
from tritonmm.autotune.serving.models import MODELS
from tritonmm.cli import main, needs, serve_bench


def call(*args):
    return CliRunner().invoke(main, ["serve-bench", *map(str, args)])


@pytest.fixture
def measured(monkeypatch):
    """A GPU and transformers seem to be there. The list has the model and the request of each comparison."""
    asked = []

    def rows(model, request, device):
        asked.append((model, request))
        yield compare.Row(model.title, "torch", "decode 1", 8.0, 125.0, 16.1)
        yield compare.Row(model.title, "int8", "decode 1", message="out of memory: 20 GiB")

    source = SimpleNamespace(
        nvml=SimpleNamespace(in_use=lambda: ""), environment=Environment.here("NVIDIA H200"), device=torch.device("cpu")
    )
    monkeypatch.setattr(needs, "gpu_source", lambda why: source)
    monkeypatch.setattr(needs, "module", lambda *args: None)
    monkeypatch.setattr(compare, "compare", rows)
    return asked


def test_the_names_of_models_are_those_that_exist():
    assert serve_bench.MODELS == tuple(MODELS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_says_so():
    result = call()
    assert result.exit_code == 2
    assert "tritonmm: serve-bench measures and needs a GPU" in result.stderr


def test_without_transformers_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(needs, "gpu_source", lambda why: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = call()
    assert result.exit_code == 2
    assert "serve-bench needs transformers: pip install 'tritonmm[serve]'" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--ways", "torch,int3"), "unknown are 'int3'; known are torch, torch+compile, torch+attention,"),
        (("--batch", "0"), "'0' is not a whole number above 0"),
        (("--model", "GPT"), "'GPT' is not one of"),
        (("--csv", "/dev/null/x.csv"), "/dev/null"),
    ],
)
def test_unknown_requests_are_refused(args, said):
    result = call(*args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_it_prints_a_table_writes_rows_and_exits_with_1_if_a_way_failed(measured, tmp_path):
    result = call(
        "--model", "llama", "--ways", "torch,int8", "--batch", "1", "--no-prefill", "--csv", tmp_path / "x.csv"
    )
    assert result.exit_code == 1, result.output
    ((model, asked),) = measured
    assert model.title == "Llama 3 8B"
    assert asked == compare.Asked(("torch", "int8"), False, (1,), None)
    assert "decode 1" in result.stdout
    assert "Llama 3 8B, int8, decode 1: out of memory: 20 GiB" in result.stdout
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert "# gpu: NVIDIA H200" in lines
    header, *rows = [line for line in lines if not line.startswith("#")]
    assert header == ",".join(compare.COLUMNS)
    assert rows == ["Llama 3 8B,torch,decode 1,8.0,125.0,16.1,,", "Llama 3 8B,int8,decode 1,,,,,out of memory: 20 GiB"]


def test_both_models_are_measured_in_all_ways(measured):
    call()
    assert [model for model, _ in measured] == list(MODELS.values())
    assert {asked for _, asked in measured} == {compare.Asked()}


def test_an_interruption_keeps_the_table(measured, monkeypatch):
    def rows(model, request, device):
        yield compare.Row(model.title, "torch", "decode 1", 8.0, 125.0, 16.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "compare", rows)
    result = call("--model", "Qwen")
    assert result.exit_code == 130
    assert "interrupted after 1 of 36 rows" in result.stderr
    assert "16.1" in result.stdout
