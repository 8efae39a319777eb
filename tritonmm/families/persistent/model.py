"""The persistent kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import BEYOND, Terms
from tritonmm.problem import Problem

BOX_ROWS = 32
"""Rows of A in a tile beyond which loading rows that are not there costs time: this kernel loads whole blocks."""


def kind(problem: Problem) -> str:
    """The list of tiles for operands of those dtypes."""
    return "half" if problem.element_bytes == problem.b_element_bytes == 2 else ""


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the persistent kernel adds to a config's time."""
    return Terms(config.block_m, caution=BEYOND if config.block_m > problem.m > BOX_ROWS else 1.0)


MODEL = TiledModel("persistent", kind, terms, persistent=True, repacks=True)
