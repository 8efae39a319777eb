"""`tritonmm plot` of results that are damaged: one line that says what is wrong, never a traceback."""

import random
import warnings

import pandas as pd
import pytest
import swept
from click.testing import CliRunner

from tritonmm.cli import main
from tritonmm.plots import rows

GOOD = pd.DataFrame(
    [
        swept.counted(swept.trial(m, order, 128))
        for m in (1000, 2048)
        for order in ("swizzle-merge:2", "swizzle-merge:4", "split-merge:4", "hilbert")
    ]
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return swept.write(tmp_path_factory.mktemp("good") / "r.csv", GOOD).read_bytes()


@pytest.fixture
def plot(tmp_path, monkeypatch):
    """Draws a file of that content, and saves nothing."""
    monkeypatch.setattr("tritonmm.plots.style.save", lambda figure, path: [path])
    path = tmp_path / "r.csv"

    def draw(content: bytes):
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(main, ["plot", str(path), "--out", str(tmp_path)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return draw


def assert_refused(result, says=""):
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert says in result.stderr


def test_the_undamaged_file_is_drawn(plot, good):
    assert plot(good).exit_code == 0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((name, "") for name in (*rows.PROBLEM, *rows.CONFIG, "order", "source")),
        *((name, value) for name in ("m", "k", "block_n", "split_k") for value in ("-1", "0", "1.5", "1e400", "NaN")),
        *((name, "1" + "0" * 400) for name in ("m", "block_n", "time_us", "l2_read_bytes")),
        *((name, value) for name in ("time_us", "tflops", "torch_us") for value in ("0", "-3", "inf", "x")),
        *((name, value) for name in ("hit_rate", "counted_l2_read_bytes") for value in ("-1", "inf", "1e400")),
        ("m", "2147483648"),
        ("block_m", "True"),
        ("persistent", "maybe"),
        ("k", "x" * 100_000),
        ("m", "1\x002"),
    ],
)
@pytest.mark.parametrize("whole", [False, True], ids=["cell", "column"])
def test_a_value_that_cannot_be_is_named(plot, tmp_path, column, value, whole):
    damaged = GOOD.astype({column: object})
    damaged.loc[damaged.index if whole else [3], column] = value
    assert_refused(plot(swept.write(tmp_path / "damaged.csv", damaged).read_bytes()), column if value else "")


@pytest.mark.parametrize("column", ["kernel", "order", "layout", "dtype", "source"])
@pytest.mark.parametrize("value", ["1e400", "7", "True", "é", "swizzle-merge:0", "x" * 200_000])
def test_a_word_that_names_nothing_is_no_accident(plot, tmp_path, column, value):
    damaged = GOOD.astype({column: object})
    damaged[column] = value
    result = plot(swept.write(tmp_path / "damaged.csv", damaged).read_bytes())
    assert result.exit_code in (0, 1, 2)
    assert all(len(line) < 600 for line in result.stderr.splitlines())


@pytest.mark.parametrize("column", [*rows.PROBLEM, *rows.CONFIG, "order", "source", "status"])
def test_a_missing_column_is_named(plot, tmp_path, column):
    result = plot(swept.write(tmp_path / "damaged.csv", GOOD.drop(columns=column)).read_bytes())
    assert result.exit_code in (1, 2)
    assert column in result.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found[:3],
        lambda found: found[: found.index(b"status")],
        lambda found: random.Random(0).randbytes(2000),
        lambda found: b"\0" * 2000,
        lambda found: b"m,n\n" + b"1," * 5_000,
        lambda found: found.replace(b"\n", b"\0"),
        lambda found: found.replace(b"ok", b"\xff\xfe"),
        lambda found: found.replace(b",", b";"),
        lambda found: found.replace(b"hilbert", b"x" * 200_000),
        lambda found: found.replace(b"hilbert", b'"'),
        lambda found: b"",
    ],
    ids=[
        "cut",
        "cut-header",
        "binary",
        "zeros",
        "wide",
        "nul-lines",
        "no-utf-8",
        "semicolons",
        "field",
        "quote",
        "empty",
    ],
)
def test_what_is_no_results_file_is_one_line(plot, good, damage):
    assert_refused(plot(damage(good)))


@pytest.mark.parametrize("seed", range(40))
def test_bits_that_flip_and_ends_that_are_lost_are_no_accident(plot, good, seed):
    chance = random.Random(seed)
    found = bytearray(good[: chance.randrange(len(good))] if seed % 2 else good)
    for _ in range(chance.randint(1, 8)):
        if found:
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    result = plot(bytes(found))
    assert result.exit_code in (0, 1, 2)
    assert result.exit_code != 2 or len(result.stderr.strip().splitlines()) == 1


def test_what_has_no_end_is_read_no_further(monkeypatch):
    from tritonmm.autotune.measuring import results_file

    monkeypatch.setattr(results_file, "MAX_BYTES", 2**20)
    with pytest.raises(ValueError, match="/dev/zero has more than 1048576 bytes"):
        rows.read_csv("/dev/zero")
