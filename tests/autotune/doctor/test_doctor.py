"""doctor: what it says of a machine, the traps it knows, and its self-test."""

import json
import subprocess

import pytest
import torch
from click.testing import CliRunner

from tritonmm import families
from tritonmm.accumulation import emulate
from tritonmm.autotune.doctor import checkup, selftest
from tritonmm.autotune.measuring import space
from tritonmm.cli import main
from tritonmm.plan import INTERPRETED

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled for the GPU")


def doctor(*args):
    return CliRunner().invoke(main, ["doctor", *args])


def finding(tmp_path, name):
    return next(each for each in checkup.findings(tmp_path / "sweep.sqlite") if each.name == name)


def test_versions_and_places_are_named():
    result = doctor()
    assert result.exit_code in (0, 1)
    names = {line[:12].strip() for line in result.stdout.splitlines()}
    assert {"tritonmm", "python", "torch", "triton", "cuda", "driver", "fp32", "ncu", "models"} <= names
    assert {"sweep store", "tuned table", "triton cache"} <= names
    assert "sweep.sqlite" in result.stdout


def test_json_says_the_same():
    said = json.loads(doctor("--json").stdout)
    assert said["self_test"] == []
    assert [each["name"] for each in said["findings"]][:2] == ["tritonmm", "python"]
    assert said["ok"] == (not any(each["wrong"] for each in said["findings"]))


@pytest.mark.parametrize(
    ("name", "version", "says", "wrong"),
    [
        ("triton", "3.5.1", "too old; tritonmm needs triton >= 3.6", True),
        ("triton", "3.10.0", "newer than 3.9", False),
        ("torch", "2.10.0+cu130", "too old; tritonmm needs torch >= 2.11", True),
        ("torch", "2.15.0", "", False),
    ],
)
def test_versions_that_are_not_supported(name, version, says, wrong, monkeypatch, tmp_path):
    monkeypatch.setattr(checkup.triton if name == "triton" else torch, "__version__", version)
    found = finding(tmp_path, name)
    assert (found.wrong, found.value) == (wrong, version)
    assert found.trouble.startswith(says)


def test_torch_and_triton_that_were_not_made_for_each_other(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup.importlib.metadata, "requires", lambda name: ["sympy", 'triton==3.7.1; x == "y"'])
    assert finding(tmp_path, "triton").trouble.startswith("torch")
    assert not finding(tmp_path, "triton").wrong


@interpreted
def test_numpy_that_an_old_interpreter_cannot_use(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup.importlib.metadata, "version", lambda name: "2.4.0")
    monkeypatch.setattr(checkup.triton, "__version__", "3.6.0")
    found = finding(tmp_path, "gpu")
    assert found.wrong
    assert "pip install 'numpy<2.4'" in found.trouble


def test_a_driver_without_a_gpu_is_wrong(monkeypatch, tmp_path):
    from tritonmm.autotune.measuring import environment

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment, "_answer", lambda *command: "580.65.06")
    assert finding(tmp_path, "driver").wrong


def test_tf32_is_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(checkup, "fp32_precision", lambda: "tf32")
    assert "tf32" in finding(tmp_path, "fp32").trouble


def test_a_place_that_cannot_be_written_is_wrong(tmp_path):
    (tmp_path / "file").touch()
    (store,) = (x for x in checkup.findings(tmp_path / "file" / "sweep.sqlite") if x.name == "sweep store")
    assert store.wrong
    assert "is not a folder" in store.trouble


def test_a_damaged_store_is_wrong(tmp_path):
    (tmp_path / "sweep.sqlite").write_text("hello")
    (store,) = (x for x in checkup.findings(tmp_path / "sweep.sqlite") if x.name == "sweep store")
    assert store.wrong
    assert "not a readable SQLite file" in store.trouble


def test_a_full_disk_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(checkup, "MIN_FREE_BYTES", 2**80)
    assert "MiB are free there" in finding(tmp_path, "sweep store").trouble


def test_a_damaged_table_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path))
    path = checkup.tuned.user_path(checkup.gpus.default())
    path.write_text("{")
    assert "not a table" in finding(tmp_path, "tuned table").trouble


def test_it_names_no_gpu_of_this_machine_where_there_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert finding(tmp_path, "models").value == "h200: compared with counters of such a GPU"


def test_it_says_which_fitted_constants_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path))
    gpu = checkup.gpus.default()
    base = checkup.constants.shipped(gpu)
    assert finding(tmp_path, "constants").value == base.source
    path = checkup.constants_file.path(gpu)
    path.write_text(checkup.constants_file.text(base, gpu, base, "2026-11-26"))
    assert finding(tmp_path, "constants").value == f"fitted to this machine's GPU on 2026-11-26, {path}"
    path.write_text("{")
    found = finding(tmp_path, "constants")
    assert found.wrong
    assert (found.value, str(path) in found.trouble) == (base.source, True)


def test_the_self_test_has_a_product_of_every_kernel_family():
    assert {kernel for kernel, *_ in selftest.PRODUCTS} == set(families.names())


@pytest.mark.parametrize(("kernel", "m", "n", "k", "dtype", "layout"), selftest.PRODUCTS)
def test_the_self_test_compares_bits_where_they_are_known(kernel, m, n, k, dtype, layout, monkeypatch):
    problem = space.problem(m, n, k, dtype=dtype, layout=layout)
    a, b, out = space.operands(problem, torch.device("cpu"))
    space.fill(a)
    space.fill(b)
    scales = space.scales(problem, torch.device("cpu"))
    if problem.scales == "group":
        assert selftest.verified(problem, a, b, out, scales) is None
        return
    scale = {} if scales is None else {"scale_b": scales[1].t()}
    out.copy_(emulate(a, b, precision=problem.precision, out_dtype=out.dtype, **scale))
    assert selftest.verified(problem, a, b, out, scales)
    monkeypatch.setattr(selftest, "SAMPLES", out.numel())
    out[-1, -1] = 2 * out[-1, -1] + 64
    assert selftest.verified(problem, a, b, out, scales).wrong == 1


GLUON = ("hopper", "exact", "mixed_input", "grouped")  # which cannot be interpreted


@interpreted
def test_the_self_test_passes_in_the_interpreter():
    result = doctor("--self-test", "--json")
    products = json.loads(result.stdout)["self_test"]
    assert [each["kernel"] for each in products] == [kernel for kernel, *_ in selftest.PRODUCTS]
    assert {each["status"] for each in products if each["kernel"] in GLUON} == {"none"}
    assert {each["status"] for each in products if each["kernel"] not in GLUON} == {"pass"}, products


@pytest.mark.parametrize("end", ["crash", "hang"])
def test_a_self_test_that_dies_or_hangs_is_a_fail(end, monkeypatch):
    first = json.dumps({"kernel": "tile", "product": "1x1x1", "status": "pass", "said": "0.5"}).encode() + b"\n"

    def run(command, **kwargs):
        if end == "hang":
            raise subprocess.TimeoutExpired(command, 300, output=first)
        return subprocess.CompletedProcess(command, -11, first, b"")

    monkeypatch.setattr(selftest.subprocess, "run", run)
    found = list(selftest.outcomes(interpret=True))
    assert [each.status for each in found] == ["pass", "fail"]
    assert found[1].said == ("no end after 300 s" if end == "hang" else "the process ended with -11")
    assert doctor("--self-test").exit_code == 1


@pytest.mark.gpu
def test_the_self_test_passes_on_the_gpu():
    products = json.loads(doctor("--self-test", "--json").stdout)["self_test"]
    assert "fail" not in {each["status"] for each in products}, products
    assert sum(each["status"] == "pass" for each in products) >= 4
