"""Tuned tables: what is published is selected, and no file, whatever is in it, does more than warn."""

import gc
import json
import math
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import H200, PROBLEM, WINNER, best, forget, put, row, select, valid
from threads import at_once

from tritonmm import gpu as gpus
from tritonmm import orders, tuned
from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.config import Config
from tritonmm.explanation import Explanation
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.policy import prefers
from tritonmm.problem import Epilogue, Problem
from tritonmm.tuned import table
from tritonmm.tuned.table import DamagedError, Row, TableError

pytestmark = pytest.mark.usefixtures("user")

CLOSE = replace(PROBLEM, m=4000)


def test_what_is_published_is_selected_and_read_back(user):
    before = best()
    assert not before.is_measured
    assert before.config != WINNER
    assert tuned.publish([(PROBLEM, WINNER, 200.0)], H200) == user
    for _ in range(2):
        found = best()
        assert (found.us, found.config, found.is_measured) == (200.0, WINNER, True)
        forget()
    assert select.choose(PROBLEM, H200) == WINNER
    assert best(replace(PROBLEM, layout="nn")).origin.startswith("the shortest estimate")


def test_a_winner_replaces_its_problems_row_alone(user):
    other = replace(PROBLEM, m=64, epilogue=Epilogue(bias=True))
    tuned.publish([(PROBLEM, WINNER, 200.0), (other, Config(), 5.0)], H200)
    again = replace(WINNER, num_stages=5)
    tuned.publish([(PROBLEM, again, 190.0)], H200)
    rows, wrong = table.read(user, H200)
    assert not wrong
    assert {x.problem: (x.config, x.us) for x in rows} == {PROBLEM: (again, 190.0), other: (Config(), 5.0)}
    assert [p.name for p in user.parent.iterdir() if p.suffix == ".tmp"] == []


def test_torchs_time_is_kept_where_it_was_measured(user):
    """A row without it is written as it was before there was such a field, and as old files have it."""
    other = replace(PROBLEM, m=64)
    tuned.publish([(PROBLEM, WINNER, 200.0, 210.5), (other, Config(), 5.0, None), (CLOSE, WINNER, 6.0)], H200)
    forget()
    found = {x.problem: x.torch_us for x in table.read(user, H200)[0]}
    assert found == {PROBLEM: 210.5, other: None, CLOSE: None}
    assert tuned.tables(H200).exact(PROBLEM)[0].torch_us == 210.5
    written = json.loads(user.read_text())["rows"]
    assert [x.get("torch_us", "missing") for x in written] == [210.5, "missing", "missing"]
    assert {name for x in written for name in x} == {f.name for f in fields(Row)}


@pytest.mark.parametrize("torch_us", [0, -1, float("inf"), float("nan"), 10**400, "7", True, [1]], ids=str)
def test_a_time_of_torch_that_cannot_be_is_refused(user, torch_us):
    with pytest.raises(ValueError, match="torch_us must be a finite number above 0"):
        tuned.publish([(PROBLEM, WINNER, 200.0, torch_us)], H200)
    assert not user.exists()
    with pytest.raises(ValueError, match="torch_us must be"):
        Row.of(json.loads(row().to_json()) | {"torch_us": torch_us})


def test_an_order_of_every_spelling_survives(user):
    kinds = [orders.SplitMerge(3), orders.SwizzleMerge(16, 8), orders.Serpentine(5, along="n"), orders.Hilbert()]
    for i, order in enumerate(kinds):
        tuned.publish([(replace(PROBLEM, m=64 * (i + 1)), Config(order=order), 1.0)], H200)
    assert [x.config.order for x in table.read(user, H200)[0]] == kinds


def test_the_users_table_comes_before_the_one_that_ships(user, tmp_path):
    shipped, users = replace(WINNER, num_stages=3), replace(WINNER, num_stages=5)
    put(tmp_path / "shipped" / "h200.json", valid(row(config=shipped, date="2026-12-24")))
    assert best().config == shipped
    put(user, valid(row(config=users, date="2020-01-01")))
    assert best().config == users


def test_rows_of_this_triton_come_first_and_then_the_newest(user):
    these = replace(WINNER, num_stages=3)
    put(user, valid(row(triton="1.0", date="2026-12-24"), row(config=these, date="2020-01-01")))
    assert best().config == these
    put(user, valid(row(triton="1.0", date="2020-01-01"), row(config=these, triton="2.0", date="2026-12-24")))
    assert best().config == these


def test_what_is_illegal_here_is_a_miss(user, tmp_path):
    """A table goes from one Triton to another, where some of its configs do not run: that is no warning."""
    expected = best()
    illegal = replace(WINNER, num_stages=9)
    assert not illegal.fits(PROBLEM, H200)
    put(user, valid(row(config=illegal)))
    assert best() == expected
    put(tmp_path / "shipped" / "h200.json", valid())
    assert best().config == WINNER


def test_a_family_that_is_asked_for_is_the_one_that_is_found(user):
    tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert select.choose(PROBLEM, H200, "tile").kernel == "tile"
    assert select.choose(PROBLEM, H200, "hopper") == WINNER


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": Config(num_stages=99)}, "does not fit"),
        ({"config": Config(order=orders.Table([(0, 0)]))}, "no spelling"),
        ({"us": 0}, "us must"),
        ({"us": float("nan")}, "us must"),
    ],
    ids=["illegal", "table order", "no time", "nan"],
)
def test_nothing_is_published_that_could_not_be_read(user, change, says):
    given = {"problem": PROBLEM, "config": WINNER, "us": 1.0} | change
    with pytest.raises(ValueError, match=says):
        tuned.publish([(PROBLEM, WINNER, 200.0), tuple(given.values())], H200)
    assert not user.exists()


def test_an_order_of_another_kind_of_product_is_no_row(user):
    square = replace(PROBLEM, m=4096, n=4096)
    gram = replace(square, symmetric="gram")
    triangular = replace(WINNER, order=orders.Triangular(8, aspect=(WINNER.block_m, WINNER.block_n)))
    assert Row.of(json.loads(row(gram, triangular).to_json())).config == triangular
    for problem, config in ((square, triangular), (gram, WINNER), (gram, replace(triangular, block_m=512))):
        with pytest.raises(ValueError, match="order is"):
            row(problem, config)


NOT_TABLES = {
    "empty": b"",
    "not UTF-8": b'{"schema": 1, "gpu": "\xff"}',
    "nested": b"[" * 100_000,
    "nested objects": b'{"schema":' * 100_000,
    "huge integer": b'{"schema": 1' + b"0" * 100_000 + b', "rows": []}',
    "NaN": json.dumps(valid()).replace("200.0", "NaN").encode(),
    "infinity": json.dumps(valid()).replace("200.0", "-Infinity").encode(),
    "name twice": json.dumps(valid()).replace('"us"', '"us": 1, "us"').encode(),
    "list": b"[]",
    "no rows": b'{"schema": 1}',
    "rows are a number": b'{"schema": 1, "rows": 7}',
    "schema is true": b'{"schema": true, "rows": []}',
    "pickle": b"\x80\x04\x95.",
}
NOT_OURS = {
    "newer schema": json.dumps(valid() | {"schema": table.SCHEMA + 1}).encode(),
    "another GPU": json.dumps(valid() | {"gpu": {"name": "h100", "arch": "sm_90", "sms": 132}}).encode(),
    "a part of the GPU": json.dumps(valid() | {"gpu": {"name": "h200", "arch": "sm_90", "sms": 66}}).encode(),
    "too many rows": json.dumps(valid() | {"rows": [0] * (table.MAX_ROWS + 1)}).encode(),
    "too large": json.dumps(valid()).encode() + b" " * table.MAX_BYTES,
}


@pytest.mark.parametrize("content", [*NOT_TABLES.values(), *NOT_OURS.values()], ids=[*NOT_TABLES, *NOT_OURS])
def test_a_file_that_is_no_table_is_one_warning_and_a_miss(user, content):
    expected = best()
    put(user, content)
    with pytest.warns(UserWarning, match="tuned table not used") as caught:
        found = best()
    assert found == expected
    assert len(caught) == 1
    best(replace(PROBLEM, m=64))  # without another warning, which would be an error


@pytest.mark.parametrize("content", NOT_TABLES.values(), ids=NOT_TABLES)
def test_publishing_over_a_damaged_file_renames_it(user, content):
    put(user, content)
    with pytest.warns(UserWarning, match=r"renamed to h200.json.damaged"):
        tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert user.with_name("h200.json.damaged").read_bytes() == content
    assert best().config == WINNER


@pytest.mark.parametrize("content", NOT_OURS.values(), ids=NOT_OURS)
def test_publishing_over_anothers_file_leaves_it(user, content):
    put(user, content)
    with pytest.raises(TableError, match=r"h200\.json"):
        tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert user.read_bytes() == content


@pytest.mark.parametrize("kind", ["folder", "link to a folder", "pipe", "link to itself", "link to a device"])
def test_what_is_no_file_is_a_warning_and_stays(user, kind):
    user.parent.mkdir()
    if kind == "folder":
        user.mkdir()
    elif kind == "pipe":
        os.mkfifo(user)
    else:
        target = {"link to a folder": user.parent, "link to itself": user, "link to a device": "/dev/zero"}[kind]
        user.symlink_to(target)
    forget()
    with pytest.warns(UserWarning, match="tuned table not used"):
        found = best()
    assert not found.is_measured
    before = user.lstat().st_mode
    with pytest.raises((TableError, OSError)):
        tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert user.lstat().st_mode == before


def test_a_link_to_a_file_stays_one(user, tmp_path):
    user.parent.mkdir()
    user.symlink_to(tmp_path / "elsewhere.json")
    tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert user.is_symlink()
    assert best().config == WINNER


WRONG = {
    "m": [0, -1, 2**31, 1.0, "4096", True, None, [], {}, 10**400],
    "batch": [0, False],
    "dtype": ["bf17", 16, None, [], {}, "x" * 1000, "\ud800"],
    "precision": ["tf33", []],
    "layout": ["nq", "n", 7, ["n", "t"]],
    "a_alignment": [3, 32, 16.0, True, "16"],
    "epilogue": [None, [], {"scaled": 1}, {"scaled": "yes"}, {"gelu": True}],
    "kernel": ["cublas", [], None, "__class__"],
    "block_m": [0, -128, 128.0, True, "128", 2**31, 10**400],
    "num_stages": [0, 2**40],
    "persistent": [1, "true", None, []],
    "order": ["zigzag:8", "swizzle-merge", "swizzle-merge:0", 8, None, [], "swizzle-merge:" + "1," * 5000 + "1"],
    "cluster": ["k", [], None],
    "repack": ["c", {}, 1],
    "us": [0, -1, "200", None, True, [], 10**400],
    "tritonmm": ["", 1, None, "a b", "x" * 1000],
    "triton": ["3", "3.6.0", 3.6, None, "\u0663.6"],
    "date": ["yesterday", 20261120, None, "2026-13-01"],
    "color": ["red"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
    ids=lambda x: repr(x)[:30],
)
def test_a_wrong_field_costs_its_row_and_one_warning(user, name, value):
    good = row(replace(PROBLEM, m=64))
    content = valid(good, row())
    bad = content["rows"][1]
    where = next((part for part in (bad["problem"], bad["config"], bad) if name in part), bad)
    where[name] = value
    put(user, content)
    with pytest.warns(UserWarning, match=r"1 rows not used, row 2: ") as caught:
        found = best()
    assert not found.is_measured
    assert len(caught) == 1
    assert len(str(caught[0].message)) < 500
    assert best(good.problem).is_measured


def survives(user, content: bytes):
    """Whatever is in the file, a legal config comes out, and nothing worse than a warning."""
    put(user, content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = best()
    assert found.config.fits(PROBLEM, H200)
    return found


def test_truncated_at_any_byte(user):
    content = json.dumps(valid()).encode()
    for size in range(len(content)):
        assert not survives(user, content[:size]).is_measured
    assert survives(user, content).is_measured


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(content=st.binary(max_size=200) | JSON.map(lambda found: json.dumps(found).encode()))
def test_any_content_is_survived(user, content):
    assert not survives(user, content).is_measured


@FUZZ
@given(data=st.data())
def test_a_table_with_anything_in_some_place_is_survived(user, data):
    content = valid()
    places = [(x, name) for x in (content, content["gpu"], content["rows"][0]) for name in x]
    places += [(content["rows"][0][part], name) for part in ("problem", "config") for name in content["rows"][0][part]]
    part, name = data.draw(st.sampled_from(places))
    part[name] = data.draw(JSON)
    survives(user, json.dumps(content).encode())


def test_tables_that_were_replaced_are_forgotten(user):
    """Each has all rows of its file; a process that tunes on first calls publishes again and again."""
    gone = []
    for i in range(8):
        tuned.publish([(replace(PROBLEM, m=64 * (i + 1)), Config(), 1.0)], H200)
        best()
        gone.append(weakref.ref(tuned.tables(H200)))
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 4


def test_eight_threads_read_it_once(user):
    put(user, b"no table")
    found = []
    with pytest.warns(UserWarning, match="not used") as caught:
        at_once(8, lambda _: found.append(tuned.tables(H200)))
    assert len(caught) == 1
    assert len(set(map(id, found))) == 1


def test_processes_that_publish_at_once_lose_nothing(user):
    code = (
        "import sys; from tritonmm import gpu, tuned; from tritonmm.config import Config; from tritonmm.problem import"
        " Problem\n"
        "first = int(sys.argv[1]); sys.stdin.read(1)\n"
        "for m in range(first, first + 20): tuned.publish([(Problem.dense(m, 64, 64), Config(), m)], gpu.spec('h200'))"
    )
    starts = (1, 101, 201, 301)
    ran = [
        subprocess.Popen([sys.executable, "-c", code, str(first)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for first in starts
    ]
    for process in ran:
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in ran:
        assert (process.communicate()[1], process.returncode) == (b"", 0)
    rows, wrong = table.read(user, H200)
    assert not wrong
    assert {(x.problem.m, x.us) for x in rows} == {(m, m) for first in starts for m in range(first, first + 20)}


def test_a_full_table_makes_room_and_can_be_read(user, monkeypatch):
    monkeypatch.setattr(table, "MAX_ROWS", 3)
    put(user, valid(*(row(replace(PROBLEM, m=m), date=f"2026-01-0{m}") for m in (3, 1, 2))))
    tuned.publish([(PROBLEM, WINNER, 200.0)], H200)
    assert {x.problem.m for x in table.read(user, H200)[0]} == {2, 3, 4096}


def test_the_most_rows_of_the_longest_kind_can_be_read():
    longest = Problem(2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1, epilogue=Epilogue())
    config = Config("persistent", 2**20, 2**20, 2**20, 2**20, 2**20, 2**20, 2**20, repack="ab")
    text = replace(row(longest, config), us=1 / 3, tritonmm="0" * 20).to_json()
    assert table.MAX_ROWS * (len(text) + 2) < table.MAX_BYTES


def test_a_failed_write_leaves_the_table(user, monkeypatch):
    tuned.publish([(PROBLEM, WINNER, 200.0)], H200)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        tuned.publish([(PROBLEM, WINNER, 100.0)], H200)
    assert [x.us for x in table.read(user, H200)[0]] == [200.0]
    assert sorted(p.name for p in user.parent.iterdir()) == ["h200.json", "h200.json.lock"]


def test_a_part_of_a_gpu_has_a_table_of_its_own(user):
    half = replace(H200, sms=66)
    tuned.publish([(PROBLEM, WINNER, 400.0)], half)
    assert (user.parent / "h200-66sms.json").exists()
    assert not best().is_measured
    assert best(gpu=half).us == 400.0
    assert tuned.user_path(replace(H200, name="../../a b/\u00e9")).name == "------a-b---132sms.json"


def test_explain_says_where_the_config_comes_from(user, monkeypatch):
    assert "why  the shortest estimate of the configs considered: " in str(Explanation.of(CLOSE, H200))
    tuned.publish([(PROBLEM, WINNER, 222.25)], H200)
    said = str(Explanation.of(PROBLEM, H200))
    assert "why  measured to be fastest on 20" in said
    assert f"with Triton {tuned._TRITON}: 1024 tiles" in said
    assert "time  222.2 us, measured" in said
    assert "enable()  " in said
    assert "ours was measured to take 222.2 us" in said
    monkeypatch.setattr(select, "AGREES", 100)
    assert f"why  measured to be fastest for {PROBLEM} nearby, and its estimate is " in str(Explanation.of(CLOSE, H200))


def test_the_policy_believes_what_was_measured(user):
    for us, ours in ((1.0, True), (1e6, False)):
        tuned.publish([(PROBLEM, WINNER, us)], H200)
        assert prefers(PROBLEM, H200)[0] is ours


def test_timed_begins_with_the_shortest_estimate():
    for problem in (PROBLEM, CLOSE, Problem.dense(777, 1001, 3001), Problem.dense(8, 4096, 4096, layout="nt")):
        found = list(select.timed(problem, H200))
        assert found[0] == select.estimated(problem, H200).config
        assert len(set(found)) == len(found) > 4
        assert all(config.fits(problem, H200) for config in found)


def test_torchs_time_is_in_a_row_that_has_it(user):
    assert "torch_us" not in json.loads(row().to_json())
    timed = replace(row(), torch_us=210.5)
    assert Row.of(json.loads(timed.to_json())) == timed
    put(user, valid(timed))
    assert best().torch_us == 210.5
    for wrong in (0, -1.0, math.inf, "1", True):
        with pytest.raises(ValueError, match="torch_us must be a finite number above 0"):
            replace(row(), torch_us=wrong)


def test_asdict_of_a_row_is_what_is_written():
    written = json.loads(row().to_json())
    assert written["problem"] == asdict(PROBLEM)
    assert Row.of(written) == row()


def test_what_ships_is_read_without_a_word(monkeypatch):
    monkeypatch.undo()
    for path in tuned._SHIPPED.glob("*.json"):
        gpu = gpus.spec(path.stem)
        rows, wrong = table.read(path, gpu)
        assert rows
        assert not wrong
        # Clusters need the Triton that they were measured with.
        assert all(row.config.fits(row.problem, gpu) for row in rows if HAS_CLUSTERS or not row.config.cluster)


MADE_OF = ("tune", "tune-2", "tune-3", "tune-4", "pairs", "beside", "beside-2", "rest", "contest")
MADE_OF += ("bench-shapes-triton-3.6.0",)


def both_times(name: str) -> Iterator[tuple[str, str, float, float]]:
    """Each product and config of a results file with its time and torch's in the same rounds."""
    (path,) = RESULTS.glob(f"h200-{name}.csv*")
    _, _, rows = results_file.read(path)
    sizes = {id(x): f"{x.get('batch') or 1}x{x['m']}x{x['n']}x{x['k']} {x['layout']} {x['dtype']}" for x in rows}
    of_torch = {sizes[id(x)]: x["time_us"] for x in rows if x.get("config") == "torch"}
    for x in rows:
        us = x.get("us") or x.get("ours_us") or x.get("time_us")
        torch_us = x.get("torch_us") or of_torch.get(sizes[id(x)])
        if us and torch_us and x.get("config") != "torch" and x.get("status", "ok") == "ok":
            config = x.get("config") or results_file.product(x)[1]
            config = Config.from_json(config) if str(config).startswith("{") else config
            spelled = str(config).replace(" persistent", "")  # older files say it of every hopper config
            yield sizes[id(x)], spelled.replace("relayout:", "repack:"), float(us), float(torch_us)


def test_both_times_of_what_ships_stand_together_in_a_results_file():
    measured = {each for name in MADE_OF for each in both_times(name)}
    shipped, _ = table.read(Path(table.__file__).with_name("h200.json"), H200)
    assert any(found.torch_us for found in shipped)
    for found in shipped:
        p = found.problem
        product = f"{p.batch}x{p.m}x{p.n}x{p.k} {p.layout} {p.kind}"
        config = str(found.config).replace(" persistent", "")
        assert found.torch_us is None or (product, config, found.us, found.torch_us) in measured, found


def test_damage_is_told_from_what_is_anothers(user):
    put(user, b"[]")
    with pytest.raises(DamagedError):
        table.read(user, H200)
    assert table.read(user.with_name("missing.json"), H200) == ([], [])
