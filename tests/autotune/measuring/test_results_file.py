"""Results files as text and gzipped: what is written is read again, and what is damaged is said."""

import gzip

import pytest

from tritonmm.autotune.measuring import results_file

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
