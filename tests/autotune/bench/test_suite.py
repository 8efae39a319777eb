"""Suites: what is read, and errors that name the file, the entry and the field."""

import json
import os
import threading
from dataclasses import asdict

import pytest

from tritonmm.autotune.bench import suite
from tritonmm.autotune.bench.suite import Entry, SuiteError
from tritonmm.autotune.measuring.group_sizes import DISTRIBUTIONS, TYPICAL, sizes_of

LAYERS = {
    "Mixtral 8x7B": (8, 4096, 14336),
    "Qwen3-30B-A3B": (128, 2048, 768),
    "Qwen3-235B-A22B": (128, 4096, 1536),
    "DeepSeek-V3": (256, 7168, 2048),
    "DeepSeek-V3 on 8 GPUs": (32, 7168, 2048),
    "gpt-oss-20b": (32, 2880, 2880),
    "gpt-oss-120b": (128, 2880, 2880),
}
"""Experts, hidden size and size of an expert of models whose layers are in the suite of groups."""

GOOD = {"family": "square", "m": 64, "n": 48, "k": 32, "batch": 1, "layout": "nt", "dtype": "bf16"}


def written(tmp_path, content):
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_public_suite_ships_and_each_entry_is_a_problem():
    entries = suite.load("public")
    assert "public" in suite.names()
    assert len(entries) == 72
    assert len({entry.family for entry in entries}) == 9
    for entry in entries:
        problem = entry.problem()
        assert (problem.m, problem.n, problem.k, problem.batch) == (entry.m, entry.n, entry.k, entry.batch)
        assert (problem.layout, problem.dtype) == (entry.layout, entry.dtype)


@pytest.mark.parametrize("name", suite.names())
def test_every_suite_ships_each_product_once(name):
    entries = suite.load(name)
    assert len(set(entries)) == len(entries)


def test_weights_of_a_byte_are_measured_in_the_same_shapes():
    """With scales of groups and of rows, so that a mean of one family can be held against another's."""
    shapes = {}
    for entry in suite.load("dtypes"):
        problem = entry.problem()
        if problem.b_element_bytes < problem.element_bytes:
            assert entry.family == entry.dtype
            shapes.setdefault(entry.family, set()).add((entry.m, entry.n, entry.k, entry.layout))
    assert set(shapes) == {"bf16-int8", "bf16-fp8", "bf16-int8-row", "bf16-fp8-row"}
    assert {len(found) for found in shapes.values()} == {12}
    assert len(set(map(frozenset, shapes.values()))) == 1


def test_the_suite_of_groups_has_every_distribution_and_what_models_compute():
    entries = suite.load("grouped-mm")
    assert {entry.sizes for entry in entries} == set(DISTRIBUTIONS)
    assert {entry.family for entry in entries if entry.ragged == "k"} >= {"dw"}
    layers = {(entry.groups, entry.n, entry.k) for entry in entries if entry.ragged == "m"}
    for groups, hidden, ffn in LAYERS.values():
        assert {(groups, 2 * ffn, hidden), (groups, hidden, ffn), (groups, hidden, 2 * ffn)} <= layers
    for entry in entries:
        problem = entry.problem()
        assert (problem.ragged, problem.groups) == (entry.ragged, entry.groups)
        assert problem.unaligned == ""
        assert sum(sizes_of(problem, entry.sizes)) == (entry.m if entry.ragged == "m" else entry.k)


def test_a_suite_with_groups_is_read_as_it_was_written(tmp_path):
    entries = (*suite.load("grouped-mm"), *suite.load("public"))
    assert suite.load(written(tmp_path, [asdict(entry) for entry in entries])) == entries


def test_sizes_that_are_left_out_are_typical(tmp_path):
    (entry,) = suite.load(written(tmp_path, [GOOD | {"ragged": "m", "groups": 4}]))
    assert entry.sizes == TYPICAL
    assert str(entry) == "64x48x32 nt bf16 4 groups of m random"


def test_a_file_is_read_in_its_order(tmp_path):
    path = written(tmp_path, [GOOD, GOOD | {"m": 7, "batch": 3, "dtype": "tf32"}])
    assert suite.load(path) == (
        Entry("square", 64, 48, 32, 1, "nt", "bf16"),
        Entry("square", 7, 48, 32, 3, "nt", "tf32"),
    )
    assert suite.load(path)[1].problem().precision == "tf32"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"m": "64"}, "m is '64'"),
        ({"n": 0}, "n is 0; it must be a whole number from 1 to 2147483647"),
        ({"k": -1}, "k is -1"),
        ({"k": 1.5}, "k is 1.5"),
        ({"batch": True}, "batch is True"),
        ({"layout": "nq"}, "layout is 'nq'"),
        ({"layout": None}, "layout is None"),
        ({"dtype": "fp7"}, "dtype is 'fp7'"),
        ({"family": ""}, "family is ''"),
        ({"family": "a,b"}, "family is 'a,b'"),
        ({"color": 1}, "unknown field 'color'"),
        ({"groups": 4}, "ragged is ''; of 4 groups it must be m or k"),
        ({"groups": 4097, "ragged": "m"}, "groups is 4097; it must be a whole number from 0 to 4096"),
        ({"groups": "4", "ragged": "m"}, "groups is '4'"),
        ({"ragged": "m"}, "groups is 0"),
        ({"ragged": "n", "groups": 4}, "ragged is 'n'; it must be m or k"),
        ({"ragged": ["m"], "groups": 4}, "ragged is ['m']"),
        ({"ragged": "m", "groups": 4, "sizes": "normal"}, "sizes is 'normal'; it must be one of even"),
        ({"ragged": "m", "groups": 4, "sizes": 3}, "sizes is 3"),
        ({"ragged": "m", "groups": 4, "sizes": 0}, "sizes is 0"),
        ({"ragged": "m", "groups": 4, "sizes": []}, "sizes is []"),
        ({"sizes": "even"}, "sizes is 'even'; without groups"),
        ({"ragged": "m", "groups": 4, "batch": 2}, "batch is 2"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_an_error_names_the_file_the_entry_and_the_field(tmp_path, change, says):
    path = written(tmp_path, [GOOD, GOOD | change])
    with pytest.raises(SuiteError) as caught:
        suite.load(path)
    assert str(caught.value).startswith(f"suite {path}: entry 2")
    assert says in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_named(tmp_path, name):
    entry = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(SuiteError, match=f"entry 1 has no {name}"):
        suite.load(written(tmp_path, [entry]))


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not a readable JSON file"), ({}, "JSON list"), ([], "at least one GEMM"), ([3], "entry 1 is 3")],
    ids=["broken", "object", "empty", "number"],
)
def test_what_is_no_list_of_products_is_refused(tmp_path, content, says):
    with pytest.raises(SuiteError, match=says):
        suite.load(written(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[" * 100_000, "not a readable JSON file"),
        (json.dumps([GOOD]).replace("64", "1" + "0" * 400), "entry 1: m is 1000"),
        (json.dumps([GOOD]).replace("64", "1" + "0" * 5000), "not a readable JSON file"),
        (json.dumps([GOOD]).replace("64", "1e400"), "entry 1: m is inf"),
        (json.dumps([GOOD]).replace("64", "NaN"), "entry 1: m is nan"),
        (json.dumps([GOOD | {"m": 2**31}]), "entry 1: m is 2147483648; it must be a whole number from 1 to 2147483647"),
        (json.dumps([GOOD | {"m": 2**31 - 1, "n": 2**31 - 1, "dtype": "fp64"}]), "2**63 bytes or more"),
        (json.dumps([GOOD]).replace('"k"', '"m": 7, "k"'), "has 'm' twice"),
        (json.dumps([GOOD | {"family": "x" * 10_000 + "!"}]), "family is 'xxx"),
        (json.dumps([GOOD | {"x" * 10_000: 1}]), "unknown field 'xxx"),
        (json.dumps([["x"] * 10_000]), "entry 1 is ['x'"),
    ],
    ids=["deep", "1e400", "too-many-digits", "inf", "nan", "2^31", "2^63-bytes", "twice", "family", "field", "entry"],
)
def test_what_no_product_has_is_refused_in_a_short_line(tmp_path, content, says):
    path = written(tmp_path, content)
    with pytest.raises(SuiteError) as caught:
        suite.load(path)
    said = str(caught.value)
    assert said.startswith(f"suite {path}: ")
    assert says in said
    assert len(said) < len(str(path)) + 250
    assert "\n" not in said


def test_what_has_no_end_is_read_no_further(tmp_path):
    pipe, ended = tmp_path / "pipe", []
    os.mkfifo(pipe)

    def write():
        try:
            with pipe.open("wb", buffering=0) as file:
                for _ in range(64):
                    file.write(b" " * 2**20)
        except BrokenPipeError:
            ended.append("nobody reads on")

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(SuiteError, match=f"more than {suite.MAX_BYTES} bytes"):
        suite.load(pipe)
    writer.join()
    assert ended == ["nobody reads on"]


def test_a_suite_may_come_out_of_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps([GOOD]),))
    writer.start()
    assert suite.load(pipe) == (Entry(**GOOD),)
    writer.join()


def test_an_unknown_name_says_which_suites_ship(tmp_path):
    with pytest.raises(SuiteError, match=r"no such file; shipped are .*public"):
        suite.load(tmp_path / "none.json")


def test_a_folder_is_no_suite(tmp_path):
    with pytest.raises(SuiteError, match="not a readable"):
        suite.load(tmp_path)


def test_families_are_picked_in_the_order_of_the_suite():
    entries = suite.load("public")
    picked = suite.of_families(entries, ("deep-k", "square"))
    assert list(dict.fromkeys(entry.family for entry in picked)) == ["square", "deep-k"]
    assert len(picked) == 5 + 4


def test_an_unknown_family_says_which_there_are():
    with pytest.raises(SuiteError, match="'cube' is not in the suite; it has square, ragged-m"):
        suite.of_families(suite.load("public"), ("square", "cube"))
