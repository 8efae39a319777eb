"""The grouped kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.dtypes import FP8, HALF
from tritonmm.families.grouped.rules import BOX
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import Terms
from tritonmm.problem import Problem


def kind(problem: Problem) -> str:
    """The list of tiles: for groups of rows, of 16 or 8 bits, and for groups of K. "" for what it does not multiply."""
    p = problem
    if not p.ragged or p.block_scaled or p.element_bytes != p.b_element_bytes:
        return ""
    if p.ragged == "k":
        return "half k" if p.dtype in HALF else ""
    return "half" if p.dtype in HALF else "byte" if p.dtype in (*FP8, "int8") else ""


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the grouped kernel adds to a config's time: few rows take less."""
    return Terms(BOX)


MODEL = TiledModel("grouped", kind, terms, persistent=True)
