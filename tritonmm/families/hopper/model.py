"""The Hopper kernel's configs worth trying, and how long they take, by `TiledModel`."""

from collections.abc import Iterator
from dataclasses import replace

from tritonmm.config import Config
from tritonmm.families.hopper.rules import HAS_CLUSTERS, consumer_grid
from tritonmm.families.hopper.schedule import Schedule
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.tile_order import group_order
from tritonmm.model.time import BEYOND, BY_TMA, Terms, Tile, crossing
from tritonmm.problem import Problem

IN_PAIRS = (128, 256, 64)
"""The tile that is also tried in clusters of two, where the lines of both operands cross cache lines: SMs then receive
less than half of what they could, and a cluster asks for a third less. 32 products of 1000^3 take 108 us so, 129 in the
best tiles of one CTA, and torch 116 (H200, autotune/results/h200-pairs.csv). Elsewhere clusters gained too little: a
launch costs 1.25 us more (autotune/results/h200-clusters.csv)."""

DEALT = {"": 1.0, "singles": 0.945, "pairs": 0.92}
"""What is left of a tile's time where more tiles than half of the SMs are dealt, see `claim`. Beside 231 configs that
are not dealt, 28 and 27 that are fit 0.945 and 0.885 (h200-beside-2.csv in autotune/results); but those in pairs have
96 to 256 rows, where others take less than estimated, too. Up to half of the SMs it is as if they were not dealt."""

BOX_ROWS = 32
"""Rows of the boxes in which the Hopper kernel loads 65 to 127 rows of A for a consumer of 128. The persistent kernel
loads whole blocks."""

_HALF = (
    Tile((192, 256, 64), 3, 12, 0.96, 2.32),
    Tile((256, 192, 64), 3, 8, 0.94, 2.53),
    Tile((192, 192, 64), 4, 12, 0.98, 1.72),
    Tile((128, 256, 64), 4, 8, 0.98, 1.48),
    Tile((256, 128, 64), 4, 8, 0.975, 1.57),
    Tile((128, 192, 64), 5, 8, 0.975, 1.34),
    Tile((192, 128, 64), 5, 12, 0.965, 1.01),
    Tile((128, 128, 64), 6, 8, 0.98, 0.82),
    Tile((64, 256, 64), 5, 8, 0.985, 0.95),
    Tile((192, 64, 64), 6, 12, 0.79, 0.60),
    Tile((192, 96, 64), 5, 12, 0.86, 1.0),
    Tile((128, 96, 64), 7, 8, 0.88, 0.90),
    Tile((64, 160, 64), 7, 4, 0.80, 1.02),
    Tile((64, 128, 64), 8, 4, 0.88, 0.57),
    Tile((64, 128, 128), 4, 4, 0.83, 0.69),
    Tile((64, 96, 64), 8, 4, 0.70, 0.60),
    Tile((128, 64, 64), 8, 4, 0.865, 0.50),
    Tile((128, 64, 128), 4, 4, 0.715, 0.53),
    Tile((64, 64, 64), 8, 4, 0.56, 0.35),
    Tile((64, 64, 128), 6, 4, 0.695, 0.39),
    Tile((128, 32, 64), 11, 4, 0.56, 0.50),
    Tile((64, 32, 128), 8, 4, 0.415, 0.31),
)


def _of_depth(block_k: int, share: float) -> tuple[Tile, ...]:
    """The tiles for operands of another size: as many bytes of K, and so as long, in a step."""
    tiles = {tile.blocks[:2]: tile for tile in reversed(_HALF)}
    return tuple(replace(t, blocks=(*shape, block_k), share=t.share * share) for shape, t in tiles.items())


_BYTE = _of_depth(128, 0.9)
_TF32 = _of_depth(32, 0.95)
_GROUPED_SHARES = {
    (64, 32): 0.24, (64, 64): 0.36, (64, 128): 0.55, (128, 64): 0.53, (192, 64): 0.55, (64, 256): 0.74,
    (128, 128): 0.73, (128, 256): 0.81, (192, 128): 0.82, (256, 128): 0.79,
}  # fmt: skip
"""Of the hopper kernel's tiles where groups of K have scales: fits to what they took for eight products of 300 to 8192
rows with Triton 3.6 and 3.9, nine of ten within 10% (autotune/results/h200-grouped-triton-3.6.0.csv and -3.9.0.csv).
Since consumers take turns, see `ordered_mma.py`, what is chosen for the suite "grouped" reaches 99.6% of the best
with 3.6 and 99.9% with 3.9, 97 and 99% at worst (h200-grouped-2-triton-3.6.0.csv and -3.9.0.csv). With 192 x 128 at
0.80 it was 99.7% and 99.5%: 8192^3 takes 804 and 781 us in such tiles, and 796 and 817 in 128 x 256."""

_GROUPED = tuple(replace(t, share=_GROUPED_SHARES.get(t.blocks[:2], t.share)) for t in _BYTE)


def tiles(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that are tried for operands of those dtypes."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return ()
    if p.dtype == "fp32":
        return _TF32 if p.precision == "tf32" else ()
    if p.grouped:
        return _GROUPED
    return {1: _BYTE, 2: _HALF}.get(p.element_bytes, ())


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the Hopper kernel adds to a config's time."""
    rows = config.cta_tile[0] // consumer_grid(config)[0]
    over = problem.m % BOX_ROWS
    # In boxes of 8, 16 or 32 rows, all but 7 of which are there, as `launch.py` chooses them.
    boxed = problem.layout[0] == "n" and (0 < over <= 16 or (config.cta_tile[0] <= 128 and not 16 < over <= 24))
    beyond = rows > problem.m > BOX_ROWS and not boxed
    how = Schedule.of(config, problem, gpu).affinity
    return Terms(rows, caution=BEYOND if beyond else 1.0, affinity=DEALT[how] if how else None, split="split_tail")


def clusters(config: Config, problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Two of the config's tiles, one above the other, as one of a cluster of two CTAs that share B."""
    blocks = config.block_m, config.block_n, config.block_k
    if HAS_CLUSTERS and blocks == IN_PAIRS and all(crossing(problem, config.repack)):
        block_m = 2 * config.block_m
        order = group_order(problem, gpu, block_m, config.block_n)
        yield replace(config, block_m=block_m, cluster="m", order=order)


MODEL = TiledModel("hopper", BY_TMA, tiles, terms, persistent=True, repacks=True, variants=clusters)
