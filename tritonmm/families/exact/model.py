"""The exact kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import Terms
from tritonmm.problem import Problem


def kind(problem: Problem) -> str:
    """The list of tiles for operands of that dtype."""
    return problem.dtype if problem.precision == "ieee" and problem.dtype in ("fp32", "fp64") else ""


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the exact kernel adds to a config's time."""
    return Terms(config.block_m)


MODEL = TiledModel("exact", kind, terms, split="split_k")
