"""The common style of the figures, and how a figure is saved.

The style is set inside a context: matplotlib's global parameters do not change, and pyplot is never imported. Text is
    set in DejaVu Sans, which matplotlib ships, so that a figure looks the same everywhere.
"""

import functools
import math
import textwrap
from pathlib import Path

import matplotlib
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

INK, MUTED, FAINT = "#222222", "#5c5c5c", "#d9d9d9"
RED = "#cc3311"  # from Paul Tol's vibrant scheme; distinct from all colours of viridis
WIDTH = 9.0  # inches; at a README's 900 pixels, 9 point text is 12 pixels high
DPI = 180
_LEGEND = 0.28  # inches of a figure's head

_LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.hashsalt": "tritonmm",  # the ids in an SVG depend on its content only
}


def styled(function):
    """Runs `function` with this style, whatever the user's matplotlibrc has. The former parameters are restored."""

    @functools.wraps(function)
    def inside(*args, **kwargs):
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_LOOK)
            return function(*args, **kwargs)

    return inside


def sheet(
    height: float, title: str, subtitle: str, note: str = "", width: float = WIDTH, legend: bool = False
) -> Figure:
    """An empty figure with a head (title, subtitle, space for a `legend`) and a foot (note). height: inches between
    them."""
    under = textwrap.wrap(subtitle, int(width * 14))
    foot = [line for part in note.splitlines() for line in textwrap.wrap(part, int(width * 16))]
    top, bottom = 0.36 + 0.18 * len(under) + _LEGEND * legend, 0.15 * len(foot) + 0.08 * bool(foot)
    total = top + height + bottom
    figure = Figure(figsize=(width, total), dpi=DPI, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(rect=(0, bottom / total, 1, height / total), w_pad=0.08, h_pad=0.06)
    figure.text(0.1 / width, 1 - 0.08 / total, title, size=12, weight="bold", va="top")
    figure.text(0.1 / width, 1 - 0.34 / total, "\n".join(under), size=9, color=MUTED, va="top", linespacing=1.3)
    figure.text(0.1 / width, 0.06 / total, "\n".join(foot), size=7.5, color=MUTED, va="bottom", linespacing=1.3)
    return figure


def is_dark(colour) -> bool:
    """True if white text is more readable than black on `colour`, by relative luminance (WCAG 2)."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True)) < 0.18


@styled
def save(figure: Figure, path: str | Path) -> list[Path]:
    """Writes the figure as PNG and SVG. Returns both paths.

    path: may end in .png, .svg or neither; its folder is created.

    The bytes depend only on the figure and on matplotlib's version. Raises ValueError for a path without a name, or
    with the suffix of another format.
    """
    path = Path(path)
    if path.name in ("", ".."):
        raise ValueError(f"'{path}' is a folder; a figure needs the name of a file, as in {path / 'order.png'}")
    suffix = path.suffix.lower()
    if suffix not in (".png", ".svg") and suffix[1:] in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{path}: figures are written as PNG and SVG; name it {path.with_suffix('.png')}")
    stem = path.with_suffix("") if suffix in (".png", ".svg") else path
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    figure.savefig(png, dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, dpi=DPI, metadata={"Date": None, "Creator": None})
    return [png, svg]


def factor_axis(axes, factors, width: float = WIDTH) -> None:
    """A log2 axis with a tick at every factor. A label too close to that of a power of two is left out. width: in
    inches."""
    present = sorted({int(factor) for factor in factors})
    spacing = max(math.log2(present[-1] / present[0]), 1) / (2.9 * width)
    shown = []
    for factor in sorted(present, key=lambda f: (f & (f - 1) != 0, f)):
        if all(abs(math.log2(factor / other)) > spacing for other in shown):
            shown.append(factor)
    axes.set_xscale("log", base=2)
    axes.set_xticks(present, labels=[str(f) if f in shown else "" for f in present])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("swizzle factor")


def byte_axis(axes, values) -> None:
    """An axis from zero, or a logarithmic one for values that span more than a factor of 20."""
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(values) or 1)


def byte_unit(largest: float) -> tuple[str, float]:
    """ "GB", "MB" or "kB", and its bytes: the largest unit that is at most `largest` bytes."""
    return next(((name, size) for name, size in (("GB", 1e9), ("MB", 1e6)) if largest >= size), ("kB", 1e3))


def count(number: int, noun: str) -> str:
    """A number with its regular noun: "1 pair", "2 pairs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def legend(figure: Figure, handles: dict) -> None:
    """The legend of a whole figure, in the space that `sheet` reserved. handles: artists by label."""
    _, bottom, _, height = figure.get_layout_engine().get()["rect"]
    figure.legend(
        handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(0, bottom + height), borderaxespad=0.2,
        ncols=len(handles), fontsize=8.5, handlelength=2.2, columnspacing=1.4,
    )  # fmt: skip


def configs(lines) -> str:
    """The note of a figure over factors: each config, and the lines that have it."""
    having = {}
    for label, _, config in lines:
        having.setdefault(config, {})[label] = None
    if len(having) == 1:
        return f"Config: {next(iter(having))}."
    return "\n".join(f"{'; '.join(labels)}: {config}." for config, labels in having.items())
