"""The environment of a measurement: what tells two of them apart."""

import shutil
import subprocess
from dataclasses import fields, replace

import pytest
import torch
import triton

from tritonmm.autotune.measuring import code_digest, environment
from tritonmm.autotune.measuring.environment import Environment

HERE = Environment("H200", "580.1", "13.0", "2.15", "3.9", "0.1", "abc", "2026-11-20")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


@pytest.mark.parametrize("name", [f.name for f in fields(Environment)], ids="field {}".format)
def test_the_fingerprint_sees_every_field_but_the_date_and_the_commit(name):
    other = replace(HERE, **{name: "something else"})
    assert (other.fingerprint() == HERE.fingerprint()) == (name in ("date", "commit"))


def test_here_names_this_process():
    here = Environment.here("h200")
    assert (here.gpu, here.torch, here.triton) == ("h200", torch.__version__, triton.__version__)
    assert "# gpu: h200" in here.comments()


def test_a_machine_without_tools_has_an_environment(monkeypatch):
    monkeypatch.setenv("PATH", "")
    here = Environment.here("h200")
    assert (here.driver, here.commit) == ("", "")
    assert "# driver: none" in here.comments()


def git(folder, *command):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *identity, *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    for folder in ("tritonmm", "autotune"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("a = 1\n")
    (tmp_path / "autotune" / "results.csv").write_text("m\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


DECIDE = (
    "families/tile/kernel.py", "families/hopper/schedule.py", "families/mixed_input/rules.py", "device/order.py",
    "launch/direct.py", "model/l2.py", "model/l2_laws.py", "model/l2_groups.py", "model/time.py", "orders/order.py",
    "config.py", "problem.py", "plan.py", "autotune/measuring/measure.py", "autotune/measuring/verify.py",
)  # fmt: skip
"""Modules that change what a trial is, or the time that it is given."""


@pytest.mark.parametrize("edited", DECIDE)
def test_an_edit_of_what_decides_a_trial_is_other_code(tmp_path, edited):
    sources = code_digest.modules()
    name = edited.removesuffix(".py").replace("/", ".")
    copy = tmp_path / "edited.py"
    copy.write_bytes(sources[name].read_bytes() + b"# edited\n")
    assert code_digest.digest(sources | {name: copy}) != Environment.here("h200").code


def test_other_constants_of_the_time_model_are_other_code(tmp_path):
    sources = code_digest.modules()
    module = tmp_path / "constants.py"
    module.write_bytes(sources["model.constants"].read_bytes())
    for record in sources["model.constants"].parent.glob("*.json"):
        (tmp_path / record.name).write_bytes(record.read_bytes())
    assert code_digest.digest(sources | {"model.constants": module}) == Environment.here("h200").code
    (tmp_path / "h200.json").write_bytes((tmp_path / "h200.json").read_bytes().replace(b"0.93", b"0.94", 1))
    assert code_digest.digest(sources | {"model.constants": module}) != Environment.here("h200").code


def test_an_edit_of_a_command_or_a_figure_is_not():
    sources = code_digest.modules()
    for name in ("cli.sweep", "cli.tour", "torch_ops.override", "autotune.tuner.report", "autotune.studies.regret"):
        assert code_digest.digest(sources | {name: sources["version"]}) == Environment.here("h200").code


@needs_git
@pytest.mark.parametrize("edited", ["tritonmm/code.py", "autotune/code.py"])
def test_edited_code_is_another_commit(checkout, edited):
    clean = environment._commit(checkout)
    (checkout / edited).write_text("a = 2\n")
    once = environment._commit(checkout)
    (checkout / edited).write_text("a = 3\n")
    twice = environment._commit(checkout)
    assert len(clean) == 12
    assert once.startswith(clean + "+")
    assert len({clean, once, twice}) == 3


@needs_git
def test_results_are_no_code(checkout):
    clean = environment._commit(checkout)
    (checkout / "autotune" / "results.csv").write_text("m\n1\n")
    assert environment._commit(checkout) == clean


@needs_git
def test_a_copy_inside_another_repository_has_no_commit(checkout):
    assert environment._commit(checkout / "tritonmm") == ""
