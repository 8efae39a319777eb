"""The robustness drill: random commands, tables, stores, configs and products, of which none may end in an accident.

Some seconds of each by default, the same ones every time; with TRITONMM_DRILL=nightly new ones for about ten minutes.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import warnings
from pathlib import Path

import pytest
import torch
from bounds import assert_product
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from tables import H200, put, valid
from trials import HERE, found, trial

import tritonmm
from tritonmm import families, orders, tuned
from tritonmm import gpu as gpus
from tritonmm.autotune.doctor import checkup, selftest
from tritonmm.autotune.measuring import sources
from tritonmm.autotune.measuring.measure import Times
from tritonmm.autotune.tuner.leases import Leases
from tritonmm.autotune.tuner.store import Store, StoreError
from tritonmm.cli import main, needs
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.plan import INTERPRETED
from tritonmm.problem import KINDS, Problem
from tritonmm.tuned import table

ROOT = Path(__file__).parents[1]

NIGHTLY = os.environ.get("TRITONMM_DRILL", "") == "nightly"

interpreted = pytest.mark.skipif(not INTERPRETED, reason="commands would measure, and products take long to compile")


def drill(quick: int, nightly: int):
    """How many examples of a property are tried."""
    return settings(
        max_examples=nightly if NIGHTLY else quick,
        derandomize=not NIGHTLY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


JUNK = st.one_of(
    st.sampled_from(["", "0", "-1", "1e3", "nan", "x", "8x", "9" * 30, "@n", "[]", "{}", "--", "é", "/", "."]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)
"""No NUL: it ends an argument."""

SPELLED = st.sampled_from(["row-major", "swizzle-merge:3", "swizzle-merge:2,3@n", "split-merge:7", "hilbert", "morton"])
PLAUSIBLE = {
    "m": ["1", "64,65", "100"], "n": ["1", "64"], "k": ["1", "48"], "ms": ["1", "64,65"], "dtype": list(KINDS),
    "layout": ["nn", "tt"], "kernel": list(families.names()), "blocks": ["32x32x32", "64x32x32,16x16x16"],
    "stages": ["1,2"],
    "warps": ["4"], "factors": ["1,2"], "tile_orders": ["hilbert", "swizzle-merge:2,2,row-major"], "gpu": gpus.names(),
    "regime": ["burst", "sustained"], "suite": ["dtypes", "random60"], "families": ["square", "decode,small"],
    "shape": ["64x64x64"], "batch": ["1", "3"], "config": [Config().to_json()], "search": ["model", "halving"],
    "budget": ["0.5", "0"], "gpus": ["1"], "order": ["hilbert", "swizzle-merge:3@n"], "grid": ["8x5", "9x99999"],
    "name": ["swizzle<3,3,3>", "swizzle<9,9,99>", "SM80_16x8x16_F16F16F16F16_TN"], "tile": ["8x64", "3x5"],
    "results": ["missing.csv", "bad.csv"], "out": ["out"], "png": ["out"], "store_path": ["s.sqlite", "bad.csv", "."],
    "csv_path": ["t.csv", "."], "parquet_path": ["t.parquet"],
}  # fmt: skip
"""Values by the name of a parameter. Others are junk, or flags."""

LEFT_OUT = {"scheduler"}
"""It is waited for."""


@st.composite
def arguments(draw) -> list[str]:
    """A command, with any of its options in any order, most of them plausible."""
    name = draw(st.sampled_from([*main.commands, "nothing"]))
    if name == "nothing":
        return draw(st.lists(st.one_of(JUNK, st.sampled_from(["--help", "--version", "sweep"])), max_size=3))
    words = []
    for parameter in main.commands[name].params:
        value = st.sampled_from(PLAUSIBLE[parameter.name]) if parameter.name in PLAUSIBLE else JUNK
        value = draw(st.one_of(value, value, value, JUNK))
        if parameter.param_type_name == "argument":
            words.append([value])
        elif parameter.name not in LEFT_OUT and draw(st.integers(0, 3)) == 0:
            option = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
            words.append([option] if parameter.is_flag else [option, value])
    words += draw(st.lists(st.lists(JUNK, min_size=1, max_size=1), max_size=1)) if draw(st.integers(0, 9)) == 0 else []
    return [name, *(word for part in draw(st.permutations(words)) for word in part)]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    """A folder to run commands in, which neither multiply nor draw anything that takes long."""
    folder = tmp_path_factory.mktemp("drill")
    (folder / "bad.csv").write_bytes(b"# gpu: x\nm,n\n1,\xff\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(sources.ModelSource, "error_ratio", lambda self, problem, config: 0.5)
        patch.setattr(sources.ModelSource, "times", lambda self, problem, config: Times(1.0))
        patch.setattr(sources.Environment, "here", lambda gpu: HERE)
        patch.setattr(checkup.Environment, "here", lambda gpu: HERE)
        patch.setattr(selftest, "outcomes", lambda interpret: ())
        patch.setattr("tritonmm.cli.tour.run", lambda *_: 0)
        for figure in ("visit", "layouts"):
            patch.setattr(needs.plots(figure), "draw", lambda *args: ())
        yield folder


@interpreted
@given(arguments())
@drill(quick=200, nightly=4000)
def test_no_command_ends_in_a_traceback(harmless, args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, args)
    note(f"{result.output!r}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), args
    if result.exit_code == 2 and args:
        assert result.stdout == "", args
        assert "tritonmm: " in result.stderr, args


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """The content after a few accidents: bits that flipped, bytes that were lost or came twice."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if not found:
            break
        at = draw(st.integers(0, len(found) - 1))
        match draw(st.sampled_from(["flip", "cut", "lose", "repeat", "zero", "write"])):
            case "flip":
                found[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del found[at:]
            case "lose":
                del found[at : at + draw(st.integers(1, 512))]
            case "repeat":
                found[at:at] = found[at : at + draw(st.integers(1, 512))]
            case "zero":
                length = min(draw(st.integers(1, 512)), len(found) - at)
                found[at : at + length] = bytes(length)
            case "write":
                found[at:at] = draw(st.binary(max_size=16))
    return bytes(found)


SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just(2**64), SPELLED)
JSON = st.one_of(SCALAR, SCALAR, st.lists(SCALAR, max_size=3), st.dictionaries(st.text(max_size=8), SCALAR, max_size=3))


def places(found, path=()):
    """Where something is in a JSON value."""
    yield path
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


@st.composite
def mistyped(draw, found: object) -> object:
    """The JSON value with something of another kind at one or two places."""
    found = json.loads(json.dumps(found))
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from([path for path in places(found) if path]))
        within = found
        for key in path:
            within = within[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                within[last] = draw(JSON)
            case "remove":
                del within[last]
            case "add" if isinstance(within, dict):
                within[draw(st.text(max_size=8))] = draw(JSON)
    return found


TABLE = json.dumps(valid()).encode()


@given(st.one_of(damaged(TABLE), mistyped(valid()).map(lambda found: json.dumps(found).encode())))
@drill(quick=300, nightly=10000)
def test_a_damaged_table_has_right_rows_or_none(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "h200.json"
    path.write_bytes(content)
    try:
        rows, _ = table.read(path, H200)
    except tuned.TableError:
        return
    for row in rows:
        assert table.Row.of(json.loads(row.to_json())) == row
        row.config.fits(row.problem, H200)
    tables = tuned.Tables(rows)
    for row in rows:
        assert row in tables.exact(row.problem)
        tables.near(row.problem)


@given(damaged(TABLE))
@drill(quick=40, nightly=2000)
def test_selecting_and_publishing_outlive_a_damaged_table(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "published" / "h200.json"
    shutil.rmtree(path.parent, ignore_errors=True)
    put(path, content)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("TRITONMM_TABLES", str(path.parent))
        problem = Problem.dense(512, 512, 512)
        config = tritonmm.select(512, 512, 512, gpu="h200")
        assert config.fits(problem, H200)
        with contextlib.suppress(tuned.TableError):
            tuned.publish([(problem, config, 5.0)], H200)
            assert tritonmm.select(512, 512, 512, gpu="h200") == config
            assert problem in {row.problem for row in table.read(path, H200)[0]}


def use(path) -> None:
    """What a sweep and a tuner do with a store."""
    with Store(path) as store:
        len(store)
        for time_us in (50.0, 51.0):
            like = trial(time_us=time_us, regime=f"{time_us}")
            known = found(store, like)
            if known is not None:
                assert known.config == like.config
                known.to_json(), known.row(), known.tflops
        store.kills(HERE)
        store.add(trial(time_us=52.0, regime="52"), HERE)
        with Leases(store) as claims:
            claims.release(claims.take(["one", "two"]))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The bytes of a store with a few trials and a claim."""
    path = tmp_path_factory.mktemp("stored") / "s.sqlite"
    with Store(path) as store:
        store.add(trial(regime="50.0"), HERE)
        store.add(trial(time_us=51.0, regime="51.0"), HERE)
        store.add(trial(status="hung", regime="hung", config=Config(block_m=64)), HERE)
        store._db.execute("PRAGMA journal_mode = DELETE")
        Leases(store).take(["one"])
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    return path


@given(st.data())
@drill(quick=120, nightly=3000)
def test_a_damaged_store_is_used_or_refused(stored, data):
    path = stored.with_name("damaged.sqlite")
    for each in path.parent.glob("damaged*"):
        each.unlink()
    path.write_bytes(data.draw(damaged(stored.read_bytes())))
    with contextlib.suppress(StoreError):
        use(path)


VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=8), st.binary(max_size=8))


@given(st.data(), VALUES)
@drill(quick=60, nightly=1500)
def test_a_store_with_values_of_other_kinds_is_used_or_refused(stored, data, value):
    path = stored.with_name("mistyped.sqlite")
    for each in path.parent.glob("mistyped*"):
        each.unlink()
    shutil.copy(stored, path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        columns = [
            (of, name)
            for of in ("trials", "claims", "environments")
            for _, name, *_ in db.execute(f"PRAGMA table_info({of})")
        ]
        of, column = data.draw(st.sampled_from(columns))
        with contextlib.suppress(sqlite3.Error), db:
            db.execute(f"UPDATE {of} SET {column} = ? WHERE rowid = 1", (value,))
    with contextlib.suppress(StoreError):
        use(path)


RESULTS = b"\n".join((ROOT / "autotune/results/h200-factors.csv").read_bytes().splitlines()[:30])


@given(damaged(RESULTS))
@drill(quick=15, nightly=500)
def test_damaged_results_are_drawn_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "results.csv"
    path.write_bytes(content)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("tritonmm.plots.style.save", lambda figure, path: [path])
        result = CliRunner().invoke(main, ["plot", str(path), "--out", str(path.parent)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2)


FACTOR = st.integers(1, 40)
ALONG = st.sampled_from("mn")
ORDERS = st.one_of(
    st.sampled_from([orders.RowMajor(), orders.ColumnMajor(), orders.Morton(), orders.Hilbert()]),
    st.builds(lambda f, along: orders.SwizzleMerge(*f, along=along), st.lists(FACTOR, min_size=1, max_size=3), ALONG),
    st.builds(lambda f, along: orders.SplitMerge(f, along=along), FACTOR, ALONG),
    st.builds(lambda f, along: orders.Serpentine(f, along=along), FACTOR, ALONG),
)
BLOCK = st.one_of(st.sampled_from([16, 32, 64, 128, 256]), st.integers(1, 2**20))
CONFIGS = st.builds(
    Config,
    kernel=st.sampled_from(list(families.names())),
    **{f"block_{axis}": BLOCK for axis in "mnk"},
    num_stages=st.integers(1, 9),
    num_warps=st.one_of(st.sampled_from([4, 8, 12]), st.integers(1, 64)),
    split_k=st.integers(1, 9),
    split_tail=st.integers(1, 9),
    persistent=st.booleans(),
    order=ORDERS,
    cluster=st.sampled_from(["", "m", "n"]),
    repack=st.sampled_from(["", "a", "b", "ab"]),
)
SIZE = st.one_of(st.integers(0, 300), st.integers(0, 2**20))


def problem_of_kind(m, n, k, batch, layout, kind):
    """Packed int8 is contiguous along K."""
    layout = "nt" if KINDS[kind].get("b_dtype") == "int8p" else layout
    return Problem.dense(m, n, k, batch=batch, layout=layout, **KINDS[kind])


PROBLEMS = st.builds(
    problem_of_kind,
    *(SIZE, SIZE, SIZE, st.integers(1, 5), st.sampled_from(["nn", "nt", "tn", "tt", "sn", "ss"])),
    st.sampled_from(list(KINDS)),
)


@given(CONFIGS, PROBLEMS)
@drill(quick=400, nightly=10000)
def test_a_config_round_trips_and_every_gpu_has_an_opinion_of_it(config, problem):
    assert Config.from_json(config.to_json()) == config
    for name in gpus.names():
        fit = config.fits(problem, gpus.spec(name))
        assert bool(fit) == (not fit.reason)


@given(mistyped(json.loads(Config().to_json())))
@drill(quick=400, nightly=10000)
def test_what_is_no_config_is_a_value_error(found):
    try:
        config = Config.from_json(json.dumps(found))
    except ValueError:
        return
    assert Config.from_json(config.to_json()) == config


@st.composite
def operands(draw, rows, cols, batch, dtype):
    """A matrix, or a stack of them, of any strides and offset: transposed, sliced, spread, expanded."""
    shape = (*batch, rows, cols)
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    margin = draw(st.integers(0, 3))
    stored = [shape[i] * steps[i] + margin for i in order]
    x = torch.randn(stored).to(DTYPES[dtype]).permute([order.index(i) for i in range(len(shape))])
    x = x[tuple(slice(margin, margin + size * step, step) for size, step in zip(shape, steps, strict=True))]
    spread = draw(st.sampled_from([None, None, None, None, *range(len(shape))]))
    if spread is not None and x.shape[spread] > 0:
        x = x.narrow(spread, 0, 1).expand(shape)
    return x


@st.composite
def products(draw):
    """a, b, and the keywords of matmul."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from(["bf16", "fp16", "fp32", "fp64"]))
    m, n, k = (draw(st.one_of(st.integers(0, 5), st.integers(0, 90))) for _ in range(3))
    batch = draw(st.sampled_from([(), (), (), (2,), (1,), (2, 3)]))
    a = draw(operands(m, k, batch, dtype))
    b = draw(operands(k, n, draw(st.sampled_from([(), batch])), dtype))
    keywords = {}
    if draw(st.booleans()):
        shape = (a.double() @ b.double()).shape
        keywords["out"] = draw(operands(shape[-2], shape[-1], tuple(shape[:-2]), dtype))
        overlapping = any(s == 0 and n > 1 for s, n in zip(keywords["out"].stride(), shape, strict=True))
        assume(not overlapping)
    if draw(st.integers(0, 2)) == 0:
        blocks = [draw(st.sampled_from([16, 32, 64])) for _ in range(3)]
        keywords["config"] = Config("tile", *blocks, persistent=draw(st.booleans()), order=draw(ORDERS))
    return a, b, keywords


@interpreted
@given(products())
@drill(quick=60, nightly=2500)
def test_random_products(product):
    a, b, keywords = product
    note(f"a {list(a.shape)} {a.stride()}, b {list(b.shape)} {b.stride()}, {a.dtype}, {keywords}")
    if "out" in keywords:
        keywords["out"].fill_(float("nan"))
    before = a.clone(), b.clone()
    result = tritonmm.matmul(a, b, **keywords)
    assert_product(result, a, b)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    if "out" in keywords:
        assert result is keywords["out"]


SHAPE = st.lists(st.integers(0, 3), max_size=4)
KIND = st.sampled_from(sorted(DTYPES))


@interpreted
@given(SHAPE, SHAPE, KIND, KIND)
@drill(quick=150, nightly=5000)
def test_what_torch_refuses_is_refused_alike(shape_a, shape_b, dtype_a, dtype_b):
    a, b = (torch.zeros(s, dtype=DTYPES[d]) for s, d in ((shape_a, dtype_a), (shape_b, dtype_b)))
    try:
        expected = torch.matmul(a, b)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises((RuntimeError, NotImplementedError)):
            tritonmm.matmul(a, b)
        note(str(error))
    else:
        # We refuse int8 and its like, and dtypes that differ, which torch lets pass where there is nothing to multiply.
        with contextlib.suppress(NotImplementedError, *([RuntimeError] if dtype_a != dtype_b else [])):
            assert tritonmm.matmul(a, b).shape == expected.shape


def test_every_field_of_a_config_is_drilled():
    assert {field.name for field in dataclasses.fields(Config)} == set(CONFIGS.wrapped_strategy.kwargs)
