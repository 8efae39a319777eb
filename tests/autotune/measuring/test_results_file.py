"""Results files as text and gzipped: what is written is read again, and what is damaged is said."""

import gzip
from pathlib import Path

import pytest
from trials import HERE, trial

from tritonmm import orders
from tritonmm.autotune.measuring import results_file, space
from tritonmm.autotune.tuner.store import write_csv
from tritonmm.config import Config

ABOUT = {"gpu": "NVIDIA H200", "times": "burst: 13 rounds"}
ROWS = [{"m": "1", "message": 'a "b", c'}, {"m": "2", "message": ""}]


@pytest.fixture(params=["sweep.csv", "sweep.csv.gz"])
def path(request, tmp_path):
    path = tmp_path / request.param
    results_file.write(path, ABOUT, ["m", "message"], ROWS)
    return path


def test_what_is_written_is_read(path):
    assert results_file.read(path) == (ABOUT, ["m", "message"], ROWS)
    assert path.read_bytes().startswith(b"\x1f\x8b") == (path.suffix == ".gz")


def test_the_same_results_are_the_same_bytes(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    results_file.write(path, *results_file.read(path))
    assert path.read_bytes() == before


def test_a_gzipped_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_bytes(gzip.compress(b"# gpu: H200\nm\n1\n"))
    assert results_file.read(path) == ({"gpu": "H200"}, ["m"], [{"m": "1"}])


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:12], lambda b: b[:20] + b"\xff" * 20 + b[40:]])
def test_a_damaged_gzipped_file_is_refused(damage, tmp_path):
    path = tmp_path / "sweep.csv.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 9)))
    with pytest.raises(ValueError, match=r"sweep\.csv\.gz is gzipped, and damaged: "):
        results_file.parts(path)


def test_what_grows_beyond_the_limit_is_read_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr(results_file, "MAX_BYTES", 2**16)
    path = tmp_path / "sweep.csv.gz"
    path.write_bytes(gzip.compress(b"m\n" * 2**16))
    with pytest.raises(ValueError, match="has more than 65536 bytes"):
        results_file.parts(path)


@pytest.mark.parametrize(
    "problem",
    [
        space.problem(300, 64, 96, dtype="fp16"),
        space.problem(300, 64, 96, ragged="m", groups=5),
        space.problem(64, 96, 300, layout="tn", dtype="tf32", ragged="k", groups=4096),
    ],
    ids=str,
)
def test_a_trials_row_names_its_problem(problem, tmp_path):
    config = Config("tile", 64, 64, 32, persistent=True, order=orders.parse("largest-groups/swizzle-merge:3@n"))
    path = tmp_path / "r.csv"
    write_csv(path, [trial(problem=problem, config=config)], HERE)
    _, _, (row,) = results_file.read(path)
    assert results_file.product(row) == (problem, config)


def test_rows_from_before_there_were_groups_are_read():
    path = Path(results_file.__file__).parents[1] / "results" / "h200-l2.csv"
    _, columns, rows = results_file.read(path)
    assert not {"ragged", "groups"} & set(columns)
    assert not results_file.product(rows[0])[0].ragged


def test_a_byte_order_mark_is_no_text(tmp_path):
    """Spreadsheets write one."""
    path = tmp_path / "sweep.csv"
    path.write_bytes(b"\xef\xbb\xbf# gpu: H200\nm\n1\n")
    assert results_file.read(path) == ({"gpu": "H200"}, ["m"], [{"m": "1"}])
