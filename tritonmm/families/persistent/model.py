"""The persistent kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import BEYOND, BY_TMA, Terms, Tile
from tritonmm.problem import Problem

BOX_ROWS = 32
"""Rows of A in a tile beyond which loading rows that are not there costs time: this kernel loads whole blocks."""

_HALF = (
    Tile((128, 256, 64), 3, 8, 0.85, 2.0),
    Tile((128, 128, 64), 4, 8, 0.75, 1.2),
    Tile((128, 64, 64), 4, 4, 0.60, 0.6),
)


def tiles(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that are tried for operands of those dtypes."""
    return _HALF if problem.element_bytes == problem.b_element_bytes == 2 else ()


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the persistent kernel adds to a config's time."""
    return Terms(config.block_m, caution=BEYOND if config.block_m > problem.m > BOX_ROWS else 1.0)


MODEL = TiledModel("persistent", BY_TMA, tiles, terms, persistent=True, repacks=True)
