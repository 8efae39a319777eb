"""The rows of a results file that a figure draws, and the texts that describe them."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tritonmm.autotune.measuring import results_file
from tritonmm.orders import Grouped, RowMajor, SwizzleMerge, parse
from tritonmm.plots.model import unverified

PROBLEM = ["m", "n", "k", "batch", "layout", "dtype"]
GROUPS = ["ragged", "groups"]
CONFIG = ["kernel", "block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "persistent"]
NUMBERS = {
    *("m", "n", "k", "batch", "block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "split_tail"),
    *("time_us", "torch_us", "tflops", "dram_read_bytes", "dram_write_bytes", "l2_read_bytes", "hit_rate"),
    *("error_ratio", "counted_us", "counted_kernels", "counted_dram_read_bytes", "counted_dram_write_bytes"),
    *("counted_l2_read_bytes", "counted_fabric_bytes", "counted_lookups", "counted_hits", "counted_misses"),
    *("counted_hit_rate", "groups"),
}
"""Columns that have numbers or empty cells."""

SIZES = {*PROBLEM[:4], *CONFIG[1:-1], "split_tail"}
"""Columns with integers >= 1 in rows of status ok."""

TIMES = {"time_us", "torch_us", "tflops"}
"""Columns with numbers > 0 in rows of status ok."""

TEXTS = {
    *("layout", "dtype", "kernel", "order", "source", "status", "message", "cluster", "repack", "traffic_source"),
    "ragged",
}
"""Columns that are read as text, even if they look like numbers."""

MOST = 2**31 - 1
"""The largest size."""

LATER = {"split_tail": 1, "cluster": "", "repack": "", "ragged": "", "groups": 0}
"""Columns of a config or a problem that older results files lack, and their values there."""


def read_csv(path: str | Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """The table of a results file, and its comment lines `# key: value` by key.

    A file whose times were replaced by a contest has a comment `# times:` with the GPU, the commit and the method of
    those times; "regime" is then that method. The other comments describe the counters.

    Raises ValueError for content that is not text, has no header or is not a table, and for words in columns of
    numbers.
    """
    about, lines = results_file.parts(path)
    if not any(map(str.strip, lines)):
        raise ValueError(f"{path} has no header; a results file is written by `tritonmm sweep --csv`")
    if "times" in about:
        where, _, how = about["times"].partition(": ")
        about["regime"] = f"{how} ({where.rpartition(', ')[2]})"
    try:
        header, *cells = csv.reader(lines)
        if any(len(row) > len(header) for row in cells):
            raise csv.Error("a row has more cells than the header")
        frame = pd.read_csv(io.StringIO("".join(lines)), dtype=dict.fromkeys(TEXTS, str))
    except (csv.Error, pd.errors.ParserError, OverflowError) as error:
        raise ValueError(f"{path} is not a table of comma-separated values: {error}") from None
    for name, cells in frame.dropna(axis="columns", how="all").items():
        is_number = pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells)
        if name in NUMBERS and not is_number:
            wrong = next((cell for cell in cells.dropna() if not _is_number(cell)), "words")
            raise ValueError(f"{path}: column {name} has {str(wrong)[:40]!r}, which is not a number")
        if name == "persistent" and not pd.api.types.is_bool_dtype(cells):
            raise ValueError(f"{path}: column {name} has cells other than True and False")
    return frame, about


def _hint(names: Sequence[str]) -> str:
    counted = any(name.startswith("counted_") for name in names)
    return "; `tritonmm sweep --counters` adds them" if counted else ""


def ok(frame: pd.DataFrame, *measured: str) -> pd.DataFrame:
    """The rows of status ok with a value in each of the columns `measured`.

    Raises ValueError if a column, an ok row or a value is missing, if a value is impossible (an unknown order, a size
    below 1), and if measured and modelled rows are mixed.
    """
    missing = [name for name in (*PROBLEM, *CONFIG, "order", "source", "status") if name not in frame]
    if missing:
        raise ValueError(f"no results of a sweep: they lack {', '.join(missing)}")
    missing = [name for name in measured if name not in frame]
    if missing:
        raise ValueError(f"the results have no column {', '.join(missing)}{_hint(missing)}")
    if frame.empty:
        raise ValueError("the results have no rows")
    rows = frame[frame.status == "ok"]
    if rows.empty:
        raise ValueError(f"no row has status ok; the statuses are {', '.join(sorted(set(map(str, frame.status))))}")
    rows = rows.dropna(subset=list(measured))
    if rows.empty:
        raise ValueError(f"no row of status ok has a value in each of {', '.join(measured)}{_hint(measured)}")
    empty = [name for name in (*PROBLEM, *CONFIG, "order", "source") if rows[name].isna().any()]
    if empty:
        raise ValueError(f"a row of status ok has no {', '.join(empty)}")
    for text in rows.order.unique():
        parse(text)
    for name, was in LATER.items():
        known = rows[name].astype(object) if name in rows else pd.Series(was, rows.index, dtype=object)
        rows = rows.assign(**{name: known.where(known.notna(), was)})
    for name in sorted(NUMBERS & set(rows)):
        wrong = [value for value in rows[name].dropna() if not _is_possible(name, value)]
        if wrong:
            raise ValueError(f"a row of status ok has {str(wrong[0])[:40]} for {name}, which cannot be")
    rows = rows.astype(dict.fromkeys([*SIZES, "groups"], "int64"))
    if rows.source.nunique() > 1:
        raise ValueError(f"the results mix the sources {', '.join(sorted(set(rows.source)))}; draw them one by one")
    return rows


def by_factor(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame, str]]:
    """For each problem its label, its rows by ascending factor (a column `factor`), and their config.

    Only swizzle-merge with one factor and row-major, which is factor 1, are taken. The config is the fastest among the
    configs that were run with every factor, so that a line shows only the factor's effect. Without such a config, each
    factor has its own fastest config, and the text says so. Raises ValueError if no row has such an order.
    """
    rows = rows.assign(factor=[_factor(text) for text in rows.order]).dropna(subset="factor")
    if rows.empty:
        raise ValueError("no row has an order with a swizzle factor, such as swizzle-merge:8")
    found = []
    for label, group in problems(rows):
        group = group.sort_values("time_us", kind="stable")
        factors = group.factor.nunique()
        common = group.groupby([*CONFIG, *LATER], dropna=False).filter(lambda each: each.factor.nunique() == factors)  # noqa: B023
        config = "each factor's fastest config"
        if not common.empty:
            config = config_text(common.iloc[0])
            same = common[[*CONFIG, *LATER]]
            group = common[(same == same.iloc[0]).all(axis=1)]
        found.append((label, group.drop_duplicates("factor").sort_values("factor"), config))
    return found


def problems(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each problem by ascending m, with a label of what differs between problems."""
    differs = [name for name in PROBLEM if rows[name].nunique() > 1]
    sizes = "{m} x {n} x {k}" if {"n", "k"} & set(differs) else "M = {m}"
    label = ", ".join([sizes, *(f"{name} {{{name}}}" for name in differs if name not in "mnk")])
    are_mixed = len(rows[GROUPS].drop_duplicates()) > 1
    found = []
    for _, group in rows.groupby([*PROBLEM, *GROUPS], sort=True):
        row = group.iloc[0]
        grouped = f", {row.groups} groups of {row.ragged}" if are_mixed and row.ragged else ""
        found.append((label.format(**row) + grouped, group))
    return found


def config_text(row) -> str:
    """A row's config in words, without the order."""
    text = (
        f"{row.block_m:.0f}x{row.block_n:.0f}x{row.block_k:.0f}, {row.num_stages:.0f} stages, {row.num_warps:.0f} warps"
    )
    split = f", split-k {row.split_k:.0f}" if row.split_k > 1 else ""
    split += f", split-tail {row.split_tail:.0f}" if row.split_tail > 1 else ""
    rest = "".join(f", {name} {row[name]}" for name in ("cluster", "repack") if row[name])
    return f"{row.kernel} {text}{split}{', persistent' if row.persistent else ''}{rest}"


def caption(rows: pd.DataFrame, about: dict[str, str]) -> tuple[str, str]:
    """(GPU and source of the times, the rest): the problem, the regime, versions, commit and date.

    Raises ValueError if the comment lines `about` do not name the GPU.
    """
    if not about.get("gpu"):
        raise ValueError("the results do not say on which GPU they were measured: the line `# gpu: ...` is missing")
    same = {name: rows[name].iloc[0] for name in (*PROBLEM, *GROUPS) if rows[name].nunique() == 1}
    sizes = [f"{name.upper()} = {same[name]}" for name in "nk" if name in same]
    batch = [f"batch {same['batch']}"] if same.get("batch", 1) != 1 else []
    batch += [f"{same['groups']} groups of {same['ragged']}"] if same.get("ragged") and "groups" in same else []
    kinds = [str(same[name]) for name in ("layout", "dtype") if name in same]
    rest = ", ".join([*sizes, *batch, " ".join(kinds)]), provenance(about)
    source = "measured" if set(rows.source) == {"gpu"} else f"predicted by the model{unverified(about)}"
    return f"{about['gpu']}, {source}", "; ".join(part for part in rest if part)


def provenance(about: dict[str, str]) -> str:
    """The regime, versions, commit and date that the comment lines name."""
    known = {name: text for name, text in about.items() if text and text != "none"}
    versions = [f"{name} {known[name]}" for name in ("driver", "torch", "triton", "commit") if name in known]
    return "; ".join(filter(None, [known.get("regime"), *versions, known.get("date")]))


def _is_number(cell: object) -> bool:
    try:
        return not isinstance(cell, bool) and math.isfinite(float(cell))
    except (ValueError, TypeError, OverflowError):
        return False


def _is_possible(name: str, value: float) -> bool:
    if name in SIZES:
        return 1 <= value <= MOST and value % 1 == 0
    return math.isfinite(value) and (value > 0 or (value == 0 and name not in TIMES))


def _factor(text: str) -> float:
    order = parse(text)
    if isinstance(order, Grouped):
        order = order.inner
    if order == RowMajor():
        return 1
    single = isinstance(order, SwizzleMerge) and order.along == "m" and len(order.factors) == 1
    return order.factors[0] if single else float("nan")
