"""The cost of idle (overflow) programs: split-merge compared with swizzle-merge of the same factor, in programs and
time."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tritonmm.orders import SplitMerge, SwizzleMerge, parse
from tritonmm.plots import rows, style

_LAUNCHES = {True: "persistent", False: "plain"}


def draw(frame: pd.DataFrame, about: dict[str, str], path: str | Path) -> list[Path]:
    """Draws a results file, given as its table and its comment lines. Returns the paths of PNG and SVG.

    It compares rows that differ only in the kind of order. Where the factor divides the rows of tiles, both orders are
    the same map with the same programs. Such pairs are grey: they differ by noise and by the code that computes a tile.

    Raises ValueError for results without such a pair, and for results that cannot be drawn: see `rows.ok`,
    `rows.caption`.
    """
    return style.save(figure(frame, about), path)


@style.styled
def figure(frame: pd.DataFrame, about: dict[str, str]) -> Figure:
    """The figure of `draw`: bars of gid "surplus" and dots of gid "time", top to bottom in the order of `pairs`."""
    drawn = rows.ok(frame, "time_us")
    table = pairs(drawn)
    origin, rest = rows.caption(drawn, about)
    ragged = int((table.surplus > 0).sum())
    grids = table[table.surplus > 0].groupby(["tiles_m", "tiles_n"]).ngroups
    note = (
        f"{style.count(ragged, 'pair')} on {style.count(grids, 'grid')} on which the factor does not divide the rows of"
        " tiles. Grey: it does, so that both orders are the same map, in two kernels."
    )
    at, heads, y = [], [], -1.0
    for persistent, part in table.groupby("persistent", sort=False):
        y += 1.0
        heads.append((y, f"{_LAUNCHES[persistent]}, {', '.join(sorted(set(part.kernel)))}"))
        at += [y + 1 + i for i in range(len(part))]
        y = at[-1] + 0.6
    split = set(table.order)
    labels = table.label if len(split) == 1 else table.label + ", " + table.order
    colours = [style.RED if surplus else "#aaaaaa" for surplus in table.surplus]

    sheet = style.sheet(0.2 * (at[-1] + 2) + 0.5, f"Split-merge against swizzle-merge: {origin}", rest, note)
    programs, times = sheet.subplots(1, 2, sharey=True)
    programs.barh(at, table.surplus, height=0.62, color=colours, gid="surplus")
    programs.xaxis.set_major_formatter(PercentFormatter(1.0))
    programs.xaxis.set_major_locator(MaxNLocator(6))
    programs.set_xlim(0, max(1.25 * table.surplus.max(), 0.01))
    programs.set_xlabel(f"programs without a tile of {split.pop() if len(split) == 1 else 'split-merge'}")
    for y, row in zip(at, table.itertuples(), strict=True):
        said = f"{row.launched} for {row.tiles_m * row.tiles_n}" if row.surplus else "none"
        programs.annotate(said, (row.surplus, y), (4, 0), textcoords="offset points", va="center", size=7.5)
    times.axvline(1, color=style.MUTED, lw=1, ls=":")
    times.hlines(at, 1, table.time, colors=colours, lw=2)
    times.scatter(table.time, at, c=colours, s=34, zorder=3, gid="time")
    times.update_datalim([(0.97, at[0]), (1.03, at[0])])
    times.autoscale_view(scaley=False)
    times.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    times.set_xlabel("time of split-merge, swizzle-merge = 1")
    programs.set_yticks(at, labels=labels, size=8, color=style.INK)
    programs.set_ylim(at[-1] + 0.7, -0.7)
    for axes in (programs, times):
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    for y, text in heads:
        programs.annotate(
            text, (0, y), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            size=8.5, weight="bold",
        )  # fmt: skip
    return sheet


def pairs(drawn: pd.DataFrame) -> pd.DataFrame:
    """A row for each pair, persistent launches first, then by surplus.

    Columns: label, order, kernel, persistent, tiles_m, tiles_n. launched: programs of split-merge. surplus: idle
        programs per tile. time: split-merge's time over swizzle-merge's.
    """
    found = []
    for _, group in drawn.groupby([*rows.PROBLEM, *rows.CONFIG, *rows.LATER], dropna=False):
        fastest = group.sort_values("time_us", kind="stable").drop_duplicates("order").set_index("order")
        for text, row in fastest.iterrows():
            order = parse(text)
            if not isinstance(order, SplitMerge):
                continue
            same = str(SwizzleMerge(*order.factors, along=order.along))
            if same not in fastest.index:
                continue
            tiles_m, tiles_n = -(-row.m // row.block_m), -(-row.n // row.block_n)
            launched = order.launched(tiles_m, tiles_n)
            found.append(
                {
                    "label": f"{tiles_m} x {tiles_n} tiles, K = {row.k}",
                    "order": text,
                    **{name: row[name] for name in ("kernel", "persistent")},
                    **{"tiles_m": tiles_m, "tiles_n": tiles_n, "launched": launched},
                    "surplus": launched / (tiles_m * tiles_n) - 1,
                    "time": row.time_us / fastest.loc[same].time_us,
                }
            )
    if not found:
        raise ValueError("no config was run with both split-merge and swizzle-merge of one factor on the same problem")
    return pd.DataFrame(found).sort_values(["persistent", "surplus", "tiles_m"], ascending=[False, False, True])
