"""Pictures of layouts: a tile coloured by bank, and fragments coloured by thread.

They are computed by `tritonmm.layouts`; nothing is measured.
"""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from tritonmm.layouts.banks import BANKS
from tritonmm.layouts.mma_atoms import Atom
from tritonmm.layouts.show import SwizzledTile
from tritonmm.layouts.tv import owners
from tritonmm.plots import style

_COLOURS = colormaps["viridis"]
_LEFT, _GAP, _RIGHT, _OVER, _UNDER, _BAR = 0.5, 0.55, 0.15, 0.66, 0.2, 0.6  # inches around the panels
_SMALLEST_TEXT = 4.5  # points

MOST_UNITS = 65_536
"""The most units (accesses) of a tile that can be drawn."""

MOST_COLUMNS = 16
"""Columns of an accumulator that are drawn; the following columns repeat the pattern."""


def draw(what: SwizzledTile | Atom, path: str | Path) -> list[Path]:
    """Draws a tile, plain and swizzled, or the fragments of an atom. Returns the paths of PNG and SVG."""
    return style.save(figure_of_atom(what) if isinstance(what, Atom) else figure_of_tile(what), path)


@style.styled
def figure_of_tile(tile: SwizzledTile) -> Figure:
    """The tile's units, plain and swizzled, coloured by bank. A column of one colour is read in as many passes as it
    has units.

    Raises ValueError for more than `MOST_UNITS` units.
    """
    units = tile.cols // tile.unit
    if tile.rows * units > MOST_UNITS:
        raise ValueError(f"{tile.rows} x {units} accesses are more than the {MOST_UNITS} that can be drawn")
    wide = min(0.42, (style.WIDTH - _LEFT - _GAP - _RIGHT) / 2 / units)
    high = min(wide, 6.5 / tile.rows)
    panel = max(units * wide, 2.2), tile.rows * high
    width = max(6.2, _LEFT + 2 * panel[0] + _GAP + _RIGHT)
    labels = tile.banks(swizzled=True).astype(str)
    number = "colour and number are" if _text_size(labels, (wide, high)) else "colour is"
    sheet = style.sheet(
        _BAR + panel[1] + _OVER,
        f"{tile.swizzle} on {tile.rows} x {tile.cols} elements of {tile.elem_bits} bits",
        f"A cell is one access, {tile.access_bytes} bytes; its {number} the bank in which it begins. Exact, by"
        " tritonmm.layouts.",
        width=width,
    )
    sheet.set_layout_engine("none")
    inches = np.tile(sheet.get_size_inches(), 2)
    for i, (swizzled, name) in enumerate(((False, "row-major"), (True, str(tile.swizzle)))):
        left = _LEFT + i * (panel[0] + _GAP)
        axes = sheet.add_axes(np.array((left, _BAR, units * wide, panel[1])) / inches)
        banks = tile.banks(swizzled)
        _cells(axes, banks, BANKS - 1, banks.astype(str), (wide, high))
        axes.set_title(name, loc="left", weight="bold", size=10, pad=30)
        worst = tile.worst(swizzled, "column")
        axes.annotate(
            f"a column: {'free of conflicts' if worst.worst == 1 else f'{worst.worst}-way conflict'}",
            (0, 1), (0, 21), xycoords="axes fraction", textcoords="offset points", size=8.5,
            color=style.MUTED if worst.worst == 1 else style.RED,
        )  # fmt: skip
        _indices(axes.xaxis, [tile.unit * unit for unit in range(units)], 72 * wide)
        _indices(axes.yaxis, range(tile.rows), 72 * high)
    key = sheet.add_axes(np.array((_LEFT, 0.3, 2.6, 0.1)) / inches)
    colours = sheet.colorbar(ScalarMappable(Normalize(0, BANKS - 1), _COLOURS), cax=key, orientation="horizontal")
    colours.set_ticks([0, 8, 16, 24, 31], labels=["bank 0", "8", "16", "24", "31"], size=7.5)
    colours.outline.set_visible(False)
    return sheet


@style.styled
def figure_of_atom(atom: Atom) -> Figure:
    """A at the bottom left, B (as k x n) at the top right, C between them. Elements are coloured and labelled by
    thread."""
    operands = atom.operands()
    whole = len(operands) == 3
    shown = min(atom.n, 8 if whole else MOST_COLUMNS)
    cell = (0.34, 0.34) if whole else (0.5, 0.15)
    sizes = {"A": (atom.m, atom.k), "B": (atom.k, shown), "C": (atom.m, shown)}
    below = atom.m * cell[1]
    right = _LEFT + (atom.k * cell[0] + _GAP if whole else 0)
    places = {"A": (_LEFT, _UNDER), "B": (right, _UNDER + below + _OVER + 0.1), "C": (right, _UNDER)}
    height = _UNDER + below + _OVER + (atom.k * cell[1] + _OVER + 0.1 if whole else 0)
    note = f"Columns {shown} to {atom.n - 1} repeat these: 8 columns further, 4 values more." if shown < atom.n else ""
    sheet = style.sheet(
        height,
        atom.name,
        f"T: the thread that holds an element; V: which of its values. {atom.threads} threads. Exact, by"
        " tritonmm.layouts.",
        note,
        width=max(6.2, right + shown * cell[0] + _RIGHT),
    )
    sheet.set_layout_engine("none")
    inches = np.tile(sheet.get_size_inches(), 2)
    foot = 0.15 + 0.08 if note else 0
    for letter, (tv, shape) in operands.items():
        threads, values = (each.T if letter == "B" else each for each in owners(tv, shape))
        rows, cols = sizes[letter]
        threads, values = threads[:, :cols], values[:, :cols]
        joint = "\n" if whole else " "
        labels = np.array([f"T{t}{joint}V{v}" for t, v in zip(threads.flat, values.flat, strict=True)])
        left, bottom = places[letter]
        axes = sheet.add_axes(np.array((left, bottom + foot, cols * cell[0], rows * cell[1])) / inches)
        _cells(axes, threads, atom.threads - 1, labels.reshape(rows, cols), cell)
        across = {"A": "m x k", "B": "k x n", "C": "m x n"}[letter]
        axes.set_title(f"{letter}, {across}", loc="left", weight="bold", size=10, pad=17)
        _indices(axes.xaxis, range(cols), 72 * cell[0])
        _indices(axes.yaxis, range(rows), 72 * cell[1])
    return sheet


def _cells(axes, values: np.ndarray, last: int, labels: np.ndarray, cell: tuple[float, float]) -> None:
    """A cell for each value, coloured on a scale of 0 to `last`. cell: width and height in inches."""
    rows, cols = values.shape
    size = _text_size(labels, cell)
    text = size > 0
    edge = {"edgecolor": "white" if text else "none", "linewidth": 0.6 if text else 0, "rasterized": not text}
    axes.pcolormesh(values, cmap=_COLOURS, vmin=0, vmax=last, gid="cells", **edge)
    axes.set(xlim=(0, cols), ylim=(rows, 0))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    if text:
        shades = _COLOURS(values / last)
        for row, col in np.ndindex(values.shape):
            ink = "white" if style.is_dark(shades[row, col][:3]) else "black"
            axes.text(
                col + 0.5, row + 0.5, labels[row, col], size=size, color=ink, ha="center", va="center",
                linespacing=1.05,
            )  # fmt: skip


def _text_size(labels: np.ndarray, cell: tuple[float, float]) -> float:
    """Font size in points with which the longest label fits a cell, or 0 if it would be too small to read."""
    longest = max(len(part) for label in labels.flat for part in label.split("\n"))
    lines = 1 + labels.flat[0].count("\n")
    size = min(8.5, 72 * cell[0] * 0.86 / (0.64 * longest), 72 * cell[1] * 0.8 / (1.15 * lines))
    return size if size >= _SMALLEST_TEXT else 0


def _indices(axis, names, points: float) -> None:
    """Ticks in the middle of the cells, labelled where there is space. points: size of a cell."""
    names = list(names)
    needed = 7.5 * 0.64 * len(str(names[-1])) + 3 if axis.axis_name == "x" else 9
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, len(names)) if step * points >= needed)
    axis.set_ticks([i + 0.5 for i in range(0, len(names), every)], labels=[str(name) for name in names[::every]])
    axis.set_tick_params(length=0, labelsize=7.5, pad=2)
    if axis.axis_name == "x":
        axis.tick_top()
        axis.set_tick_params(length=0)
