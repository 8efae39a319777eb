"""The model of a family that tries listed tiles; times are by the terms of `model.time`."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import constants, tile_order
from tritonmm.model.chunks import chunks
from tritonmm.model.constants import Tile
from tritonmm.model.time import SPLITS, UNKNOWN, Launch, Moved, Parts, Terms, Time, whole
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

NO_ORDER = SwizzleMerge(1)
"""Stands for a config's order in the cache of `_launch`, whose result all orders share."""

SMALLER = 0.5
"""The power with which the share of an unlisted tile falls with its area below that of the listed tile nearest to it. A
guess: unlisted tiles are for sweeps, which compare orders."""


@dataclass(frozen=True, slots=True)
class TiledModel:
    """The model of one family.

    kernel: the family's name, under which `model.constants` has its limits and tiles.
    kind: the list of tiles for a problem, "" if there is none. terms: what the family adds to a config's time.
    split: the field of the config, "split_k" or "split_tail", that splits tiles along K, or "".
    repacks: whether copies of operands that TMA cannot address are tried.
    spills: whether a config has too few registers, and is neither tried nor estimated.
    variants: configs to try in addition to a tile's own.
    """

    kernel: str
    kind: Callable[[Problem], str]
    terms: Callable[[Config, Problem, Gpu], Terms]
    split: str = ""
    persistent: bool = False
    repacks: bool = False
    spills: Callable[[Config, Problem], bool] = lambda config, problem: False
    variants: Callable[[Config, Problem, Gpu], Iterable[Config]] = lambda config, problem, gpu: ()

    def candidates(self, problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """As `Family.candidates`: every tile, unsplit and split, operands as they are and repacked."""
        copies = problem.unaligned if self.repacks else ""
        for tile in self.tiles(problem, gpu):
            order = tile_order.group_order(problem, gpu, *tile.blocks[:2])
            for repack in ("", copies) if copies else ("",):
                config = _config_of(self.kernel, tile, self.persistent, order, repack)
                if self.spills(config, problem):
                    continue
                yield config
                yield from self._splits(config, tile, problem, gpu)
                yield from self.variants(config, problem, gpu)

    def passed_over(self, problem: Problem, gpu: Gpu) -> str:
        """As `Family.passed_over`: never."""
        return ""

    def orders(self, config: Config, problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """As `Family.orders`."""
        tiles = config.tiles(problem)
        for order in tile_order.nearby(*tiles, gpu.sms // config.ctas, config.block_m, config.block_n):
            yield config.ordered(order)

    def estimate(self, config: Config, problem: Problem, gpu: Gpu) -> Time:
        """As `Family.estimate`."""
        fitted = constants.of(gpu)
        if not config.programs(problem):
            return Time(fitted.shared.launch_us, Parts(launch=fitted.shared.launch_us))
        found = _moved(self, whole(config), problem, gpu)
        if found is None:
            return UNKNOWN
        launch, moved = found
        limits = fitted.limits(self.kernel)
        return launch.time(moved, config.split_k, config.split_tail, limits, gpu, fitted.shared)

    def lower_bound(self, config: Config, problem: Problem, gpu: Gpu) -> float:
        """As `Family.lower_bound`: the estimate of an order that moves the compulsory bytes alone."""
        if not config.programs(problem):
            return 0.0
        found = _least(self, whole(config), problem, gpu)
        if found is None:
            return math.inf
        launch, moved = found
        fitted = constants.of(gpu)
        limits = fitted.limits(self.kernel)
        return launch.time(moved, config.split_k, config.split_tail, limits, gpu, fitted.shared).us

    def adapted(self, config: Config, tuned_for: Problem, problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """As `Family.adapted`: the order's factor and what splits K follow the number of tiles."""
        tile = self.tile_of(config, problem, gpu)
        is_listed = tile is not None and any(tile.blocks == listed.blocks for listed in self.tiles(problem, gpu))
        if tile is None or not is_listed or (config.split_k > 1 and self.split != "split_k"):
            return
        if isinstance(config.order, SwizzleMerge):
            config = config.ordered(tile_order.group_order(problem, gpu, config.block_m, config.block_n))
        config = whole(config) if self.split else config
        yield config
        yield from self._splits(config, tile, problem, gpu)

    def tiles(self, problem: Problem, gpu: Gpu) -> tuple[Tile, ...]:
        """The listed tiles for a problem."""
        kind = self.kind(problem)
        return constants.of(gpu).tiles(self.kernel, kind) if kind else ()

    def tile_of(self, config: Config, problem: Problem, gpu: Gpu) -> Tile | None:
        """What the config's tile reaches; None where no tile is listed for such operands.

        For unlisted blocks it is a guess from the nearest listed tile.
        """
        kind = self.kind(problem)
        return _tile_of(self.kernel, kind, gpu, *config.cta_tile, config.block_k, config.num_warps) if kind else None

    def _splits(self, config: Config, tile: Tile, problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """The config with its tiles split, where there are SMs for the parts."""
        if not self.split or config.cluster:
            return
        programs = gpu.sms * tile.resident
        tiles = config.programs(problem)
        tail = tiles % programs
        split = tiles if self.split == "split_k" else tail
        ways = (chunks(problem),) if problem.fixes_sums else SPLITS
        for splits in ways if tail else ():
            if 1 < splits and split * splits <= 2 * programs:
                yield _split(config, self.split, splits)


@functools.lru_cache(maxsize=1024)
def _moved(model: TiledModel, config: Config, problem: Problem, gpu: Gpu) -> tuple[Launch, Moved] | None:
    """The launch of a config that splits nothing, and what its order moves."""
    launch = _launch(model, config.ordered(NO_ORDER), problem, gpu)
    if launch is None:
        return None
    limits, has_affinity = constants.of(gpu).limits(model.kernel), model.terms(config, problem, gpu).has_affinity
    return launch, launch.moved(config, problem, gpu, limits, has_affinity)


@functools.lru_cache(maxsize=1024)
def _least(model: TiledModel, config: Config, problem: Problem, gpu: Gpu) -> tuple[Launch, Moved] | None:
    """The launch of a config that splits nothing, and the least that an order moves."""
    launch = _launch(model, config.ordered(NO_ORDER), problem, gpu)
    return None if launch is None else (launch, launch.least_moved(constants.of(gpu).limits(model.kernel)))


@functools.lru_cache(maxsize=1024)
def _launch(model: TiledModel, config: Config, problem: Problem, gpu: Gpu) -> Launch | None:
    tile = model.tile_of(config, problem, gpu)
    if tile is None or model.spills(config, problem):
        return None
    fitted = constants.of(gpu)
    terms = model.terms(config, problem, gpu)
    return Launch.of(config, tile, fitted.limits(model.kernel), terms, problem, gpu, fitted.shared)


@functools.lru_cache(maxsize=4096)
def _config_of(kernel: str, tile: Tile, persistent: bool, order: SwizzleMerge, repack: str) -> Config:
    return Config(
        kernel, *tile.blocks, tile.num_stages, tile.num_warps, persistent=persistent, order=order, repack=repack
    )


@functools.lru_cache(maxsize=4096)
def _split(config: Config, field: str, splits: int) -> Config:
    return replace(config, split_k=splits) if field == "split_k" else replace(config, split_tail=splits)


@functools.lru_cache(maxsize=4096)
def _tile_of(kernel: str, kind: str, gpu: Gpu, block_m: int, block_n: int, block_k: int, warps: int) -> Tile | None:
    blocks = block_m, block_n, block_k

    def far(tile: Tile) -> tuple[float, int]:
        away = sum(abs(math.log2(a / b)) for a, b in zip(tile.blocks, blocks, strict=True))
        return away, abs(tile.num_warps - warps)

    tile = min(constants.of(gpu).tiles(kernel, kind), key=far, default=None)
    if tile is None or (tile.blocks == blocks and tile.num_warps == warps):
        return tile
    area = block_m * block_n / (tile.blocks[0] * tile.blocks[1])
    share = tile.share * min(1.0, area) ** SMALLER * min(1.0, warps / tile.num_warps)
    return tile._replace(blocks=blocks, share=share, fixed_us=tile.fixed_us * area)
