"""The model of a family whose tiles are listed with what they reach; times are by the terms of `model.time`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.tile_order import group_order
from tritonmm.model.time import Limits, Terms, Tile, config_of, times, with_split
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class TiledModel:
    """kernel: the family's name; limits: what limits it besides its tiles.

    tiles: the tiles that are tried for a problem; terms: what the family adds to a config's time.
    repacks: whether copies of operands that TMA cannot address are tried; variants: configs to try beside a tile's own.
    """

    kernel: str
    limits: Limits
    tiles: Callable[[Problem], tuple[Tile, ...]]
    terms: Callable[[Config, Problem, Gpu], Terms]
    persistent: bool = False
    repacks: bool = False
    variants: Callable[[Config, Problem, Gpu], Iterator[Config]] = lambda config, problem, gpu: iter(())

    def candidates(self, problem: Problem, gpu: Gpu) -> Iterator[tuple[float, Config]]:
        """As `Family.candidates`: every tile, unsplit and split, operands as they are and repacked."""
        copies = problem.unaligned if self.repacks else ""
        for tile in self.tiles(problem):
            order = group_order(problem, gpu, *tile.blocks[:2])
            for repack in ("", copies) if copies else ("",):
                config = config_of(self.kernel, tile, self.persistent, order, repack)
                yield from self._times(config, tile, problem, gpu)
                for variant in self.variants(config, problem, gpu):
                    yield from self._times(variant, tile, problem, gpu)

    def passed_over(self, problem: Problem, gpu: Gpu) -> str:
        """As `Family.passed_over`: never."""
        return ""

    def estimate(self, config: Config, problem: Problem, gpu: Gpu) -> float:
        """As `Family.estimate`; infinite for tiles that are not listed."""
        tile = self._tile_of(config, problem)
        if tile is None:
            return math.inf
        found = self._times(replace(config, split_k=1, split_tail=1), tile, problem, gpu)
        return next((us for us, split in found if split == config), math.inf)

    def adapted(self, config: Config, tuned_for: Problem, problem: Problem, gpu: Gpu) -> Iterator[tuple[float, Config]]:
        """As `Family.adapted`: the order's factor and what splits K follow the number of tiles."""
        tile = self._tile_of(config, problem)
        if isinstance(config.order, SwizzleMerge):
            config = replace(config, order=group_order(problem, gpu, config.block_m, config.block_n))
        split = self.terms(config, problem, gpu).split
        config = with_split(config, split, 1) if split else config
        if tile and (split == "split_k" or config.split_k == 1):
            yield from self._times(config, tile, problem, gpu)

    def _tile_of(self, config: Config, problem: Problem) -> Tile | None:
        blocks = *config.cta_tile, config.block_k
        same = (tile for tile in self.tiles(problem) if tile.blocks == blocks)
        return min(same, key=lambda tile: tile.num_warps != config.num_warps, default=None)

    def _times(self, config: Config, tile: Tile, problem: Problem, gpu: Gpu) -> Iterator[tuple[float, Config]]:
        yield from times(config, tile, self.limits, self.terms(config, problem, gpu), problem, gpu)
