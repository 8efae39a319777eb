"""How the Hopper kernel's tiles are distributed over programs: decided once, for estimate, launch and explanation."""

from dataclasses import dataclass
from typing import Self

from tritonmm.config import Config
from tritonmm.families.hopper.sm_affinity import affinity
from tritonmm.gpu import Gpu
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the tiles of one launch are distributed.

    split: the tiles, the last ones of the order, whose K is divided among `splits` programs each; grid: the programs
    launched; affinity: how tiles are assigned to SMs, "pairs" or "singles", or "" where they are not.
    """

    split: int
    splits: int
    grid: int
    affinity: str

    @classmethod
    def of(cls, config: Config, problem: Problem, gpu: Gpu) -> Self:
        """The schedule of a legal config."""
        tiles = config.programs(problem)
        split, splits = 0, 1
        if config.split_k > 1:
            split, splits = tiles, config.split_k
        elif config.split_tail > 1:
            split, splits = tiles % gpu.sms, config.split_tail
        assigned = affinity(config, problem, gpu)
        grid = gpu.sms if assigned else min(tiles + split * (splits - 1), gpu.sms // config.ctas)
        return cls(split, splits, grid, assigned)
