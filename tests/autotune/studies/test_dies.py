"""The study of dies: its results file says that it is simulated, and has what the study finds."""

from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import dies
from tritonmm.problem import Problem

FILE = Path(__file__).parents[3] / "autotune" / "results" / "dies-simulated.csv"


def as_text(row: dies.Row) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(row).items()}


def test_the_file_says_first_that_nothing_was_run():
    assert FILE.read_text().startswith("# SIMULATED: nothing in this file was run or measured on a GPU")


def test_published_orders_are_in_the_file_as_the_study_finds_them():
    _, _, rows = results_file.read(FILE)
    assert [row for row in rows if row["way"] == "published"] == [as_text(row) for row in dies.published()]


@pytest.mark.parametrize(("name", "config"), [("mi300x", dies.ON_MI300X), ("two dies", dies.ON_TWO_DIES)])
def test_rows_of_the_file_are_what_the_study_finds(name, config):
    _, _, rows = results_file.read(FILE)
    gpu = {"mi300x": gpus.spec("mi300x"), "two dies": dies.TWO_DIES}[name]
    of_shape = [row for row in rows if row["gpu"] == name and row["m"] == "9000"]
    assert len(of_shape) >= 6
    for row in of_shape:
        if row["order"] != "dies, one rectangle each":
            problem = Problem(*(int(row[size]) for size in "mnk"))
            found = dies.Row.of(row["way"], problem, config.ordered(orders.parse(row["order"])), gpu)
            assert as_text(found) == row


def test_each_die_has_one_rectangle():
    table = dies.rectangles(2, 4, 2, 6, 8)
    for die in range(8):
        tiles = table.visit(6, 8)[die::8]
        assert (tiles.max(axis=0) - tiles.min(axis=0)).tolist() == [2, 1], tiles
    assert dies.rectangles(2, 4, 2, 5, 8) is None


def test_the_command_prints_and_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(dies, "SHAPES", ((256, 256, 64),))
    monkeypatch.setattr(dies, "FACTORS", (1, 4))
    monkeypatch.setattr(dies, "PUBLISHED", dies.PUBLISHED[:1])
    result = CliRunner().invoke(dies.main, ["--csv", str(tmp_path / "x.csv")])
    assert result.exit_code == 0, result.output
    assert "(published 0.55, 0.95)" in result.output
    _, _, rows = results_file.read(tmp_path / "x.csv")
    assert {row["gpu"] for row in rows} == {"mi355x", "mi300x", "two dies"}
