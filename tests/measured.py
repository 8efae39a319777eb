"""What an H200 took, from autotune/results: what estimates and choices are judged by."""

import functools
import math
from collections.abc import Iterator

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import results_file, space
from tritonmm.autotune.studies import regret
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.config import Config
from tritonmm.problem import Problem

H200 = gpus.spec("h200")

SWEEPS = sorted(path.name.split(".")[0].removeprefix("h200-") for path in RESULTS.glob("h200-random*"))
"""The sweeps of all configs over random products."""

Tile = tuple[str | int, ...]
"""Kernel, rows and columns of a CTA's tile, block_k, num_stages, num_warps, split_tail and cluster of a config."""


@functools.cache
def sweep(name: str) -> regret.Measured:
    """Microseconds of every config of every problem in h200-NAME.csv."""
    (path,) = RESULTS.glob(f"h200-{name}.csv*")
    return regret.read(path)[0]


def study(name: str) -> Iterator[tuple[Problem, Tile, dict[str, str]]]:
    """The rows of a study, h200-NAME.csv, in which a config is a text without its order."""
    (path,) = RESULTS.glob(f"h200-{name}.csv*")
    for row in results_file.read(path)[2]:
        problem = space.problem(*(int(row[size]) for size in "mnk"), layout=row["layout"], dtype=row["dtype"])
        kernel, blocks, *words = row["config"].split()
        known = dict(word.split(":") for word in words if ":" in word)
        numbers = int(known["stages"]), int(known["warps"]), int(known.get("split-tail", 1))
        yield problem, (kernel, *map(int, blocks.split("x")), *numbers, known.get("cluster", "")), row


def tile(config: Config) -> Tile:
    numbers = config.block_k, config.num_stages, config.num_warps, config.split_tail
    return config.kernel, *config.cta_tile, *numbers, config.cluster


def estimate(config: Config, problem: Problem) -> float:
    """Estimated microseconds."""
    return families.family(config.kernel).estimate(config, problem, H200).us


def geomean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
