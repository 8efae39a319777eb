"""The picture of an order: the tiles of a grid, numbered and coloured by launch index.

It follows the drawings of NVIDIA/Fuser issue #3942. The idle programs of `SplitMerge` are drawn in red outside of the
grid, at the place that the split assigns to them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tritonmm.orders import Order, SplitMerge
from tritonmm.plots import style

MOST_PROGRAMS = 65_536
"""The most programs of one order that can be drawn; with more, a tile would be smaller than a pixel."""

_COLOURS = colormaps["viridis"]
_SMALLEST_NUMBER = 5.0  # points; smaller numbers are left out, from about 400 tiles on
_DIGIT = 0.64  # width of a digit as a fraction of the font size
_LARGEST_CELL = 0.44  # inches, like the spaces around the panels:
_LEFT, _GAP, _TITLE, _FOOT, _BAR = 0.5, 0.3, 0.52, 0.48, 0.35
_NARROWEST = 2.0  # what a panel's title needs


def draw(orders: Sequence[Order], tiles_m: int, tiles_n: int, path: str | Path) -> list[Path]:
    """Draws `orders` side by side on a grid of tiles_m x tiles_n tiles. Returns the paths of PNG and SVG.

    Raises ValueError for no order, an empty grid, or more than `MOST_PROGRAMS` programs.
    """
    return style.save(figure(orders, tiles_m, tiles_n), path)


@style.styled
def figure(orders: Sequence[Order], tiles_m: int, tiles_n: int) -> Figure:
    """The figure of `draw`, with one axes for each order. Idle programs are the collection of gid "overflow"."""
    _check(orders, tiles_m, tiles_n)
    visits = [places(order, tiles_m, tiles_n) for order in orders]
    cell, boxes, width, height = _arrange(visits)
    number = min(9.5, 72 * cell * 0.78 / (_DIGIT * len(str(max(map(len, visits)) - 1))))
    number = number if number >= _SMALLEST_NUMBER else 0

    what = "The number is the launch index" if number else "The dot is the first program, the square the last"
    floor = _FOOT if number else _FOOT + _BAR
    sheet = style.sheet(
        height + floor,
        f"The order in which {tiles_m} x {tiles_n} output tiles are visited",
        f"{what}. Exact, by tritonmm.orders: the same on every GPU.",
        width=max(5.6, width),
    )
    sheet.set_layout_engine("none")  # all tiles of all panels have the same, known size
    inches = np.tile(sheet.get_size_inches(), 2)
    for i, (order, visit, box) in enumerate(zip(orders, visits, boxes, strict=True)):
        left, bottom, wide, high = box
        axes = sheet.add_axes(np.array((left, bottom + floor, wide, high)) / inches)
        axes.set(xlim=(0, wide / cell), ylim=(high / cell, 0))
        _panel(axes, order, visit, (tiles_m, tiles_n), 72 * cell, number)
        _indices(axes, tiles_m, tiles_n, left=left == _LEFT, bottom=i >= len(orders) - _across(len(orders)))
    if not number:
        _colour_key(sheet, sheet.add_axes(np.array((_LEFT, 0.32, 2.5, 0.1)) / inches))
    return sheet


def places(order: Order, tiles_m: int, tiles_n: int) -> np.ndarray:
    """`order.visit`, with each idle program at the place outside of the grid that its formula gives.

    Only `SplitMerge` has idle programs. Its split rounds the rows up to a multiple of f, so program i is at row i // (N
    * f) * f + i % f and column i % (N * f) // f, even if the grid has no such row.
    """
    visit = order.visit(tiles_m, tiles_n)
    idle = np.flatnonzero(visit[:, 0] < 0)
    if len(idle) and isinstance(order, SplitMerge):
        (f,) = order.factors
        group, pos = np.divmod(idle, f * (tiles_m if order.along == "n" else tiles_n))
        row, col = group * f + pos % f, pos // f
        visit[idle] = np.stack((col, row) if order.along == "n" else (row, col), axis=1)
    return visit


def _check(orders, tiles_m, tiles_n):
    if not orders:
        raise ValueError("no order to draw; give one or more, such as [orders.SwizzleMerge(8)]")
    if tiles_m < 1 or tiles_n < 1:
        raise ValueError(f"a grid of {tiles_m} x {tiles_n} tiles has nothing to draw")
    for order in orders:
        launched = order.launched(tiles_m, tiles_n)
        if launched > MOST_PROGRAMS:
            grid = f"{tiles_m} x {tiles_n} tiles"
            raise ValueError(f"{order} launches {launched} programs on {grid}; at most {MOST_PROGRAMS} can be drawn")


def _arrange(visits):
    """(side of a tile, a box for each panel, width, height), in inches. A box is left, bottom, width, height.

    Panels are arranged in lines and aligned at their tops. Each is as large as its content.
    """
    across = _across(len(visits))
    extents = [visit.max(axis=0) + 1 for visit in visits]  # rows and columns, idle programs included
    cols = [max(extent[1] for extent in extents[column::across]) for column in range(across)]
    rows = [max(extent[0] for extent in extents[first : first + across]) for first in range(0, len(visits), across)]
    cell = min(_LARGEST_CELL, (style.WIDTH - _LEFT - _GAP * across) / sum(cols), 6.5 / max(rows))
    lefts = _LEFT + np.cumsum([0, *(max(cell * col, _NARROWEST) + _GAP for col in cols)])
    depths = np.cumsum([_TITLE + cell * row for row in rows])
    boxes = []
    for i, (high, wide) in enumerate(extents):
        line, column = divmod(i, across)
        top = depths[-1] - depths[line] + cell * rows[line]
        boxes.append((lefts[column], top - cell * high, cell * wide, cell * high))
    return cell, boxes, lefts[-1], depths[-1]


def _across(count: int) -> int:
    return 2 if count == 4 else min(count, 3)


def _panel(axes, order, visit, grid, cell, number):
    """Draws one order. cell: side of a tile; number: size of its text; both in points."""
    overflow = (visit[:, 0] >= grid[0]) | (visit[:, 1] >= grid[1])
    last = max(len(visit) - 1, 1)
    shades = _COLOURS(np.arange(len(visit)) / last)
    shades[overflow] = to_rgba(style.RED)
    inks = np.where([style.is_dark(shade) for shade in shades], "white", "black")
    raster = not number  # the SVG contains thousands of tiles as an image
    edge = {"edgecolor": "none" if raster else "white", "linewidth": cell / 45, "rasterized": raster}

    index = np.full(grid, np.nan)  # tiles that are not visited stay blank
    index[tuple(visit[~overflow].T)] = np.flatnonzero(~overflow)
    axes.pcolormesh(index, cmap=_COLOURS, vmin=0, vmax=last, **edge)
    if overflow.any():
        outside = [Rectangle((col, row), 1, 1) for row, col in visit[overflow]]
        axes.add_collection(PatchCollection(outside, facecolor=style.RED, gid="overflow", **edge))
    border = Rectangle((0, 0), grid[1], grid[0], fill=False, edgecolor=style.INK, linewidth=1.6, zorder=4)
    axes.add_patch(border).set_clip_on(False)
    digits = np.char.str_len(np.arange(len(visit)).astype(str))
    text = np.stack((_DIGIT / 2 * digits + 0.12, np.full(len(visit), 0.55)), axis=1) * number / cell
    _path(axes, visit, inks, cell, text)
    if number:
        for i, (row, col) in enumerate(visit):
            where = {"ha": "center", "va": "center_baseline", "zorder": 3}
            axes.text(col + 0.5, row + 0.5, str(i), size=number, color=inks[i], **where)
    else:
        ends = {"s": 18, "color": "white", "edgecolors": style.INK, "zorder": 5, "clip_on": False}
        for i, marker in ((0, "o"), (-1, "s")):
            axes.scatter(visit[i, 1] + 0.5, visit[i, 0] + 0.5, marker=marker, **ends)

    idle = f", {overflow.sum()} idle (red)" if overflow.any() else ""
    axes.set_title(str(order), loc="left", weight="bold", size=10, pad=17)
    axes.annotate(
        style.count(len(visit), "program") + idle,
        (0, 1),
        (0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        size=8.5,
        color=style.RED if idle else style.MUTED,
    )


def _path(axes, visit, inks, cell, text):
    """The path from tile to tile: thick lines between neighbours, thin lines for jumps.

    text: half the width and height of the number at each centre, in tiles. A line ends before a number.
    """
    centres = visit[:, ::-1] + 0.5
    moves = np.diff(centres, axis=0)
    reach = np.maximum(np.abs(moves), 1e-9)
    begins, ends = (np.min(box / reach, axis=1, keepdims=True) for box in (text[:-1], text[1:]))
    lines = np.stack((centres[:-1] + begins * moves, centres[1:] - ends * moves), axis=1)
    colours = np.where((inks[:-1] == "white") & (inks[1:] == "white"), "white", "black")
    near = np.abs(moves).sum(axis=1) == 1
    for chosen, width, alpha in ((~near, 0.02, 0.55), (near, 0.06, 0.9)):
        look = {"linewidths": min(max(0.3, width * cell), 1.3), "alpha": alpha, "rasterized": not text.any()}
        axes.add_collection(LineCollection(lines[chosen], colors=colours[chosen], zorder=2, **look), autolim=False)


def _indices(axes, tiles_m, tiles_n, left, bottom):
    """Labels rows and columns by tile index, at the outer panels."""
    for axis, tiles, shown, name in ((axes.yaxis, tiles_m, left, "tile m"), (axes.xaxis, tiles_n, bottom, "tile n")):
        every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 2**16) if tiles / step <= 16)
        named = range(0, tiles, every)
        axis.set_ticks([tile + 0.5 for tile in named], labels=[str(tile) for tile in named] if shown else [])
        axis.set_tick_params(length=0, labelsize=7.5)
        if shown:
            axis.set_label_text(name, size=8.5)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _colour_key(sheet, axes):
    bar = sheet.colorbar(ScalarMappable(cmap=_COLOURS), cax=axes, orientation="horizontal")
    bar.set_ticks([0, 1], labels=["first program", "last"], size=7.5)
    bar.outline.set_visible(False)
