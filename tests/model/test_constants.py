"""Fitted constants: whose are read for a GPU, and that a user's file is used only if it can be this GPU's."""

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring.sources import ModelSource
from tritonmm.explanation import Explanation
from tritonmm.model import constants, constants_file
from tritonmm.plan import INTERPRETED
from tritonmm.problem import Problem
from tritonmm.selection import choose

H200 = gpus.spec("h200")
H100 = gpus.spec("h100")
PROBLEM = Problem.dense(2049, 8192, 3584, layout="nt")
LAUNCH_US = 7.5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, which is missing."""
    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path / "tables"))
    constants._installed.cache_clear()
    yield tmp_path / "tables"
    constants._installed.cache_clear()


def fitted(gpu=H200):
    base = constants.shipped(gpu)
    return replace(base, shared=replace(base.shared, launch_us=LAUNCH_US))


def text(gpu=H200):
    return constants_file.text(fitted(gpu), gpu, constants.shipped(gpu), "2026-11-26")


def put(gpu, content):
    path = constants_file.path(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    constants._installed.cache_clear()
    return path


def changed(**values):
    """The text of a file with other values, by the names that lead to each, as in shared__launch_us."""
    found = json.loads(text())
    for names, value in values.items():
        *outer, last = names.split("__")
        place = found
        for name in outer:
            place = place[name]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return json.dumps(found)


@pytest.mark.parametrize("gpu", [H200, H100, gpus.spec("rtx4090"), replace(H100, sms=114)], ids=lambda x: x.name)
def test_the_users_file_is_read_for_its_gpu_and_no_other(folder, gpu):
    path = put(gpu, text(gpu))
    assert constants.of(gpu).shared.launch_us == LAUNCH_US
    assert constants.of(gpu).source == f"fitted to this machine's GPU on 2026-11-26, {path}"
    others = (each for each in map(gpus.spec, gpus.names()) if each.name != gpu.name)
    for other in (*others, replace(gpu, sms=gpu.sms - 1)):
        assert constants.of(other) is constants.shipped(other)
    path.unlink()
    constants._installed.cache_clear()
    assert constants.of(gpu) is constants.shipped(gpu)


def test_a_file_that_was_written_reads_as_the_same_record(folder):
    put(H200, text())
    found, asked = constants.of(H200), fitted()
    assert (found.shared, found.l2, found.families) == (asked.shared, asked.l2, asked.families)


def test_a_users_file_is_a_record_that_can_ship(folder, monkeypatch, tmp_path):
    (tmp_path / "h100.json").write_text(text(H100))
    (tmp_path / "h200.json").write_bytes((constants.FOLDER / "h200.json").read_bytes())
    monkeypatch.setattr(constants, "FOLDER", tmp_path)
    constants._shipped_for.cache_clear()
    try:
        assert constants.shipped(H100).shared.launch_us == LAUNCH_US
        assert constants.shipped(H200).shared.launch_us != LAUNCH_US
        assert constants.shipped(H100).source == "the h100's, which ship"
    finally:
        constants._shipped_for.cache_clear()


WRONG = [
    ("{", "Expecting property name"),
    (b"\xff\xfe", "utf-8"),
    ("[1]", '"file"'),
    ("[" * 100_000, "recursion"),
    (lambda: (constants.FOLDER / "h200.json").read_text(), '"file"'),
    (lambda: changed(file__schema=2), "its schema is 2"),
    (lambda: changed(file__gpu={"name": "h200", "arch": "sm_90", "sms": 131}), "not fitted to"),
    (lambda: text(H100), "not fitted to"),
    (lambda: changed(file__base="0" * 16), "made from other constants"),
    (lambda: changed(file__date="today"), "no date"),
    (lambda: changed(gpu=...), '"gpu"'),
    (lambda: changed(made=[1]), '"made"'),
    (lambda: changed(shared=...), "the record must have the names"),
    (lambda: changed(shared__launch_us=...), "shared must have the names"),
    (lambda: changed(l2__more=1.0), "l2 must have the names"),
    (lambda: changed(l2__capacity="0.5"), "l2 capacity must be a number"),
    (lambda: changed(l2__capacity=True), "l2 capacity must be a number"),
    (lambda: changed(shared__launch_us=-1.5), "shared launch_us is -1.5"),
    (lambda: changed(shared__launch_us=0), "shared launch_us is 0"),
    (lambda: changed(shared__launch_us=152), "must be within a factor of 100"),
    (lambda: changed(families__tile__limits__again=0.1), "families tile limits again is 0.1"),
    (lambda: changed(families__hopper__tiles__half={}), "families hopper tiles half must have the names"),
    (lambda: re.sub(r"\[0\.945, 2\.5\]", "[0.945]", text()), "must have 2 numbers"),
    (lambda: re.sub(r'"launch_us": 7\.5', '"launch_us": NaN', text()), "NaN is not JSON"),
    (lambda: re.sub(r'"launch_us": 7\.5', '"launch_us": 1e999', text()), "must be a number"),
    (lambda: "x" * (constants_file.MAX_BYTES + 1), "more than"),
]
"""Files that are refused, and what is said of each."""


@pytest.mark.parametrize(("content", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_this_gpus_constants_is_refused_and_not_used(folder, content, says):
    path = put(H200, content() if callable(content) else content)
    with pytest.warns(UserWarning, match="fitted constants not used") as warned:
        assert constants.of(H200) is constants.shipped(H200)
    assert len(warned) == 1
    said = str(warned[0].message)
    assert says in said, said
    assert str(path) in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        constants.of(H200)  # once


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_read(folder, kind):
    folder.mkdir()
    path = constants_file.path(H200)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert constants.of(H200) is constants.shipped(H200)


def test_estimates_and_choices_follow_the_constants_that_a_gpu_is_given():
    """In one process, whichever comes first: caches are keyed by the GPU and so by its constants."""
    config = choose(PROBLEM, H200)
    given = replace(H200, constants=fitted())
    family = families.family(config.kernel)
    for _ in range(2):
        more = family.estimate(config, PROBLEM, given).us - family.estimate(config, PROBLEM, H200).us
        assert more == pytest.approx(LAUNCH_US - constants.of(H200).shared.launch_us)
    small = constants.shipped(H200)
    small = replace(small, l2=replace(small.l2, capacity=small.l2.capacity / 4))
    large = Problem.dense(8192, 8192, 1024, layout="nt")  # L2 holds what several waves read
    read = [Explanation.of(large, gpu).traffic.dram_read_bytes for gpu in (H200, replace(H200, constants=small), H200)]
    assert read[1] > read[0] == read[2]


def test_explain_says_which_constants_are_used(folder):
    assert "constants  the h200's, which ship\n" in str(Explanation.of(PROBLEM, H200))
    assert "constants  the h100's, which ship\n" in str(Explanation.of(PROBLEM, H100))
    b200 = gpus.spec("b200")
    assert "constants  the h200's, which ship; none do for this GPU\n" in str(Explanation.of(PROBLEM, b200))
    path = put(H100, text(H100))
    said = "".join(str(Explanation.of(PROBLEM, H100)).split())  # the path may be wrapped
    assert f"constants  fitted to this machine's GPU on 2026-11-26, {path}".replace(" ", "") in said


@pytest.mark.skipif(not INTERPRETED, reason="modelled trials are checked in the interpreter")
def test_modelled_trials_are_of_their_constants(folder):
    before = ModelSource(H200).environment.fingerprint()
    put(H200, text())
    assert ModelSource(H200).environment.fingerprint() != before


def test_a_new_process_reads_the_file(folder):
    put(H200, text())
    code = "from tritonmm import gpu; from tritonmm.model import constants as c; print(c.of(gpu.spec('h200')).source)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("fitted to this machine's GPU on 2026-11-26")
