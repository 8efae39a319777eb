"""The exact kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import Limits, Terms, Tile
from tritonmm.problem import Problem

LIMITS = Limits(stream=0.55, sm_bandwidth=203e9, l2_bandwidth=21.6e12, crossed=0.6, overlap=2.3)

_FP32 = (
    Tile((64, 64, 16), 4, 2, 0.72, 1.0, resident=4),
    Tile((128, 128, 32), 2, 8, 0.725, 1.0),
    Tile((64, 64, 16), 3, 4, 0.55, 0.5, resident=2),
)
_FP64 = (
    Tile((128, 64, 32), 4, 8, 0.90, 1.0),
    Tile((64, 64, 16), 3, 4, 0.85, 0.5),
    Tile((64, 32, 16), 4, 4, 0.85, 0.5),
)


def tiles(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that are tried for operands of that dtype."""
    if problem.precision != "ieee":
        return ()
    return {"fp32": _FP32, "fp64": _FP64}.get(problem.dtype, ())


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the exact kernel adds to a config's time."""
    return Terms(config.block_m, split="split_k")


MODEL = TiledModel("exact", LIMITS, tiles, terms)
