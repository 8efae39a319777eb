"""The model of a family that tries listed tiles; times are by the terms of `model.time`."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tritonmm.config import Config
from tritonmm.families.family import Bounded
from tritonmm.gpu import Gpu
from tritonmm.model import constants, groups, tile_order
from tritonmm.model.chunks import chunks
from tritonmm.model.record import Tile
from tritonmm.model.time import SPLITS, UNKNOWN, Launch, Moved, Parts, Terms, Time, whole
from tritonmm.orders import Order
from tritonmm.problem import Problem

MOST_LAUNCHES = 1024
"""Launches of one problem that are kept: more than there are listed tiles. With one more, all are dropped."""

MOST_ORDERS = 256
"""Orders of one launch whose traffic is kept: more than `select` compares. With one more, all are dropped."""

SMALLER = 0.5
"""The power with which the share of an unlisted tile falls with its area below that of the listed tile nearest to it. A
guess: unlisted tiles are for sweeps, which compare orders."""


@dataclass(frozen=True, slots=True, eq=False)
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
        for part in self.bounded(problem, gpu):
            yield from part.configs

    def bounded(self, problem: Problem, gpu: Gpu) -> Iterator[Bounded]:
        """As `Family.bounded`: each tile, unsplit and split."""
        launches = _of(self, problem, gpu)
        copies = problem.unaligned if self.repacks else ""
        for tile in self.tiles(problem, gpu):
            if problem.symmetric and not tile_order.has_triangle(tile.blocks):
                continue
            for repack in ("", copies) if copies else ("",):
                config = _config_of(self, tile, repack)
                if problem.symmetric or problem.ragged:
                    config = config.ordered(tile_order.group_order(problem, gpu, *tile.blocks[:2]))
                if problem.ragged:  # only the device knows how many tiles there are
                    config = config.changed(persistent=True)
                if self.spills(config, problem):
                    continue
                splits = self._splits(config, tile, problem, gpu)
                yield Bounded(launches.lower_bound(config, bool(splits)), self._grouped(config, splits, problem, gpu))
                for variant in self.variants(config, problem, gpu):
                    yield Bounded(launches.lower_bound(variant), self._grouped(variant, (), problem, gpu))

    def passed_over(self, problem: Problem, gpu: Gpu) -> str:
        """As `Family.passed_over`: never."""
        return ""

    def orders(self, config: Config, problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """As `Family.orders`."""
        for order in (*tile_order.orders_of(config, problem, gpu), *tile_order.orders_of_dies(config, problem, gpu)):
            if order != config.order:
                yield config.ordered(order)

    def estimate(self, config: Config, problem: Problem, gpu: Gpu) -> Time:
        """As `Family.estimate`."""
        return _of(self, problem, gpu).estimate(config)

    def lower_bound(self, config: Config, problem: Problem, gpu: Gpu) -> float:
        """As `Family.lower_bound`: the estimate of an order that moves the compulsory bytes alone."""
        return _of(self, problem, gpu).lower_bound(config)

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

    def _splits(self, config: Config, tile: Tile, problem: Problem, gpu: Gpu) -> Sequence[int]:
        """Numbers of parts in which a tile may be split along K: those for which there are enough SMs."""
        if not self.split or config.cluster or problem.ragged:
            return ()
        programs = gpu.sms * tile.resident
        tiles = config.programs(problem)
        tail = tiles % programs
        split = tiles if self.split == "split_k" else tail
        ways = (chunks(problem),) if problem.fixes_sums else SPLITS
        return [splits for splits in ways if 1 < splits and split * splits <= 2 * programs] if tail else ()

    def _grouped(self, config: Config, splits: Sequence[int], problem: Problem, gpu: Gpu) -> Iterator[Config]:
        """The config in groups of tiles, unsplit and split. Nothing is computed before the first is asked for."""
        order = tile_order.group_order(problem, gpu, config.block_m, config.block_n)
        config = config.ordered(order)
        yield config
        for parts in splits:
            yield config.changed(**{self.split: parts})


class _Launches:
    """The launches of one problem by one family, and what their orders move, each computed when it is first asked for.

    found: by the fields of a config that they depend on.
    """

    def __init__(self, model: TiledModel, problem: Problem, gpu: Gpu):
        fitted = constants.of(gpu)
        self.model, self.problem, self.gpu = model, problem, gpu
        self.limits, self.shared = fitted.limits(model.kernel), fitted.shared
        self.found: dict[tuple, _Found | None] = {}
        self.is_empty = not problem.m * problem.n * problem.batch

    def estimate(self, config: Config) -> Time:
        """The time of a config."""
        if self.is_empty:
            return Time(self.shared.launch_us, Parts(launch=self.shared.launch_us))
        found = self.of(config)
        if found is None:
            return UNKNOWN
        moved = found.moved.get(config.order)
        if moved is None:
            moved = self._moved(found.launch, whole(config))
            if len(found.moved) >= MOST_ORDERS:
                found.moved.clear()
            found.moved[config.order] = moved
        return found.launch.time(moved, config.split_k, config.split_tail, self.limits, self.gpu, self.shared)

    def lower_bound(self, config: Config, or_split: bool = False) -> float:
        """Microseconds that no order makes shorter. or_split: nor any number of parts along K."""
        found = None if self.is_empty else self.of(config)
        if found is None:
            return 0.0 if self.is_empty else math.inf
        launch, least, _ = found
        fitted = self.limits, self.gpu, self.shared
        us = launch.time(least, config.split_k, config.split_tail, *fitted).us
        return min(us, launch.least_split_us(least, self.model.split == "split_k", *fitted)) if or_split else us

    def of(self, config: Config) -> "_Found | None":
        """The launch of a config, for all orders and splits; None where its family has no estimate."""
        blocks = config.block_m, config.block_n, config.block_k
        key = *blocks, config.num_stages, config.num_warps, config.persistent, config.cluster, config.repack
        found = self.found.get(key)
        if found is None:
            if len(self.found) >= MOST_LAUNCHES:
                self.found.clear()
            found = self.found[key] = self._new(whole(config))
        return found

    def _new(self, config: Config) -> "_Found | None":
        model, problem, gpu = self.model, self.problem, self.gpu
        tile = model.tile_of(config, problem, gpu)
        if tile is None or model.spills(config, problem):
            return None
        if problem.ragged:
            equal = self._equal(config)
            terms = model.terms(equal.config, equal.problem, gpu)
            launch = Launch.of(equal.config, tile, self.limits, terms, equal.problem, gpu, self.shared)
            launch = launch._replace(
                ctas=max(1, equal.tiles),
                operand_bytes=equal.operand_bytes,
                output_bytes=equal.output_bytes,
                before_us=launch.before_us + self.shared.repack_us,  # another launch makes the table of groups
            )
        else:
            terms = model.terms(config, problem, gpu)
            launch = Launch.of(config, tile, self.limits, terms, problem, gpu, self.shared)
        return _Found(launch, launch.least_moved(self.limits), {})

    def _equal(self, config: Config) -> groups.Equal:
        """The grouped product as equal groups."""
        rows = self.model.terms(config, groups.average(self.problem), self.gpu).rows
        return groups.as_equal(self.problem, config, rows)

    def _moved(self, launch: Launch, config: Config) -> Moved:
        """What the order of a config that splits nothing moves."""
        if self.problem.ragged:
            equal = self._equal(config)
            moved = launch.moved(equal.config, equal.problem, self.gpu, self.limits, has_affinity=False)
            return moved._replace(ctas=max(1, equal.tiles))
        has_affinity = self.model.terms(config, self.problem, self.gpu).has_affinity
        return launch.moved(config, self.problem, self.gpu, self.limits, has_affinity)


class _Found(NamedTuple):
    """A launch, the least that an order moves, and what orders move."""

    launch: Launch
    least: Moved
    moved: dict[Order, Moved]


@functools.lru_cache(maxsize=16)
def _of(model: TiledModel, problem: Problem, gpu: Gpu) -> _Launches:
    return _Launches(model, problem, gpu)


@functools.lru_cache(maxsize=1024)
def _config_of(model: TiledModel, tile: Tile, repack: str) -> Config:
    """The config of a tile, in its family's default order."""
    return Config(
        model.kernel, *tile.blocks, tile.num_stages, tile.num_warps, persistent=model.persistent, repack=repack
    )


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
