"""The fit of the time model's constants to measured times.

The loss is what choosing by the estimates costs, in logarithms: the time of the config that would be chosen, over the
best one's, with a soft minimum; to which the squared errors of the estimates are added, those within a product for more
than those of a whole product. Its gradient is that of the estimates, by numerical derivatives of the model itself.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tritonmm import families
from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.record import Record, Tile
from tritonmm.problem import Problem

NEAR, FAR = 1.3, 3.0
"""Errors count of configs that take up to so many times as long as the best of a GEMM, and choices of all up to FAR."""

WITHIN, IN_ORDERS, WHOLE, CHOICE = 1.0, 3.0, 0.2, 0.3
"""Weights in the loss: of squared errors around the mean of a GEMM's configs, and of a config's orders; of the squared
means; and of what choosing by the estimates costs. Round numbers."""

SOFT = 0.01
"""The temperature of the soft minimum: an estimate longer by so much, in logarithms, is chosen e times less often."""

STEP, TRUST = 0.01, 0.1
"""Of the logarithms of constants: the step of derivatives, and the most that a round of the fit changes."""


@dataclass(frozen=True, slots=True)
class Points:
    """Measured configs.

    group: numbers the sets from which a config is chosen; is_order: whether a set has orders of one config. is_free:
    whether a config's estimate is fitted; the others only compete.
    """

    problems: list[Problem]
    configs: list[Config]
    us: np.ndarray
    group: np.ndarray
    is_order: np.ndarray
    is_free: np.ndarray

    @classmethod
    def of(
        cls,
        sets: Iterable[tuple[Problem, Mapping[Config, float], bool]],
        is_free: Callable[[Config, Problem], bool] = lambda config, problem: True,
    ) -> "Points":
        """The points of sets of at least two configs that take at most `FAR` times as long as the set's best.

        sets: a problem, the microseconds of its configs, and whether these are orders of one config.
        Raises ValueError if there is no such set.
        """
        found: list[tuple[Problem, Config, float, int, bool, bool]] = []
        groups = 0
        for problem, times, is_order in sets:
            near = {config: us for config, us in times.items() if us <= FAR * min(times.values())}
            if len(near) > 1:
                for config, us in near.items():
                    found.append((problem, config, us, groups, is_order, is_free(config, problem)))
                groups += 1
        if not found:
            raise ValueError("no GEMM was measured with two configs")
        problems, configs, *columns = zip(*found, strict=True)
        return cls(list(problems), list(configs), *map(np.array, columns))

    @property
    def best_us(self) -> np.ndarray:
        """The shortest time of each point's group."""
        least = np.full(self.group.max() + 1, math.inf)
        np.minimum.at(least, self.group, self.us)
        return least[self.group]

    def reached(self, logs: np.ndarray) -> list[float]:
        """For each group, the share of the best config's speed that the shortest estimate reaches. logs: estimates."""
        chosen = {}
        for at in np.argsort(-logs, kind="stable"):  # the last of a group is its shortest
            chosen[self.group[at]] = self.best_us[at] / self.us[at]
        return [chosen[group] for group in sorted(chosen)]


def model_of(kernel: str) -> TiledModel:
    """The model of a family of listed tiles. Raises ValueError for other families."""
    model = getattr(families.family(kernel), "MODEL", None)
    if not isinstance(model, TiledModel):
        raise ValueError(f"{kernel} has no listed tiles, whose model could be fitted here")
    return model


def estimates(found: Points, record: Record, gpu: Gpu) -> np.ndarray:
    """Logarithms of the microseconds of all free points by a record; 0 of the others."""
    us = np.ones(len(found.us))
    with_record = replace(gpu, constants=record)
    for at in np.flatnonzero(found.is_free):
        config = found.configs[at]
        us[at] = families.family(config.kernel).estimate(config, found.problems[at], with_record).us
    return np.log(us)


@dataclass(frozen=True, slots=True)
class Constant:
    """One number of a record, or several that change together: `changed` multiplies them by e to a power."""

    name: str
    changed: Callable[[Record, float], Record]


def with_tiles(record: Record, change: Callable[[str, str, Tile], Tile]) -> Record:
    """The record with every tile changed, by family and kind."""
    found = {
        name: section
        | {
            "tiles": {
                kind: tuple(change(name, kind, tile) for tile in tiles) for kind, tiles in section["tiles"].items()
            }
        }
        if "tiles" in section
        else section
        for name, section in record.families.items()
    }
    return replace(record, families=found)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Inside, torch uses one thread: with few points, several take ten times as long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _blocks(config: Config) -> tuple[int, int, int]:
    return *config.cta_tile, config.block_k


class Fit:
    """A fit of constants to some points.

    each_tile: whether the share and the fixed time of each measured tile are fitted as well; the free points are then
    of families with listed tiles. prior: weight in the loss of the sum of the squared logarithms by which constants
    change, for few points. moved: after `run`, the logarithms by which `constants` changed.
    """

    def __init__(
        self, found: Points, constants: Sequence[Constant], gpu: Gpu, *, each_tile: bool = False, prior: float = 0.0
    ):
        self.points, self.constants, self.gpu, self.prior = found, constants, gpu, prior
        self.moved: list[float] = []
        pairs = zip(found.problems, found.configs, found.is_free, strict=True)
        keys = [
            (config.kernel, model_of(config.kernel).kind(problem), _blocks(config), config.num_warps)
            if is_free and each_tile
            else None
            for problem, config, is_free in pairs
        ]
        self.tiles = {key: i for i, key in enumerate(dict.fromkeys(key for key in keys if key))}
        self.one_of = torch.zeros(len(keys), len(self.tiles), dtype=torch.float64)
        for at, key in enumerate(keys):
            if key:
                self.one_of[at, self.tiles[key]] = 1.0
        fixed = [
            0.0 if is_free else math.log(families.family(config.kernel).estimate(config, problem, gpu).us)
            for problem, config, is_free in zip(found.problems, found.configs, found.is_free, strict=True)
        ]
        self.fixed = torch.tensor(fixed, dtype=torch.float64)
        self.logs = torch.tensor(np.log(found.us))
        self.cost = torch.tensor(np.log(found.us / found.best_us))
        self.group = torch.tensor(found.group)
        self.is_order = torch.tensor(found.is_order)
        self.counts = torch.tensor(found.is_free & (found.us <= NEAR * found.best_us)).double()

    def loss(self, free_logs: torch.Tensor) -> torch.Tensor:
        """Of the logarithms of the free estimates, without the prior."""
        estimated = free_logs + self.fixed
        group, groups = self.group, int(self.group.max()) + 1
        zeros = torch.zeros(groups, dtype=torch.float64)
        counts = zeros.index_add(0, group, self.counts)
        error = torch.where(self.counts > 0, estimated - self.logs, 0.0)
        mean = zeros.index_add(0, group, error) / counts.clamp_min(1)
        around = self.counts * (error - mean[group]) ** 2
        least = torch.full((groups,), math.inf, dtype=torch.float64)
        least = least.scatter_reduce(0, group, estimated.detach(), "amin")
        weight = torch.exp((least[group] - estimated) / SOFT)
        chosen = zeros.index_add(0, group, weight * self.cost) / zeros.index_add(0, group, weight)
        of_orders = zeros.index_add(0, group, self.is_order.double()) > 0
        loss = WHOLE * (mean[counts > 0] ** 2).mean()
        for kind, is_kind, factor in ((~of_orders, ~self.is_order, WITHIN), (of_orders, self.is_order, IN_ORDERS)):
            if kind.any():
                loss = loss + factor * around[is_kind].sum() / self.counts[is_kind].sum().clamp_min(1)
                loss = loss + CHOICE * chosen[kind].mean()
        return loss

    def loss_of(self, record: Record) -> float:
        """The loss by a record, without the prior."""
        return float(self.loss(torch.tensor(estimates(self.points, record, self.gpu))))

    def changed(self, record: Record, x: Sequence[float]) -> Record:
        """The record with all constants multiplied by e to the powers `x`: of `constants`, the shares of the tiles, and
        their fixed times."""
        for constant, power in zip(self.constants, x, strict=False):
            record = constant.changed(record, power)
        of_tiles = x[len(self.constants) :]

        def change(kernel: str, kind: str, tile: Tile) -> Tile:
            at = self.tiles.get((kernel, kind, tile.blocks, tile.num_warps))
            if at is None:
                return tile
            share, fixed_us = of_tiles[at], of_tiles[len(self.tiles) + at]
            return tile._replace(share=tile.share * math.exp(share), fixed_us=tile.fixed_us * math.exp(fixed_us))

        return with_tiles(record, change) if self.tiles else record

    def run(self, record: Record, rounds: int, say: Callable[[str], object] = lambda line: None) -> Record:
        """The record with the least loss that is found."""
        count, tiles = len(self.constants), len(self.tiles)
        at = torch.tensor(estimates(self.points, record, self.gpu))
        moved = torch.zeros(count + 2 * tiles, dtype=torch.float64)  # from the start

        def loss_at(logs: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            return self.loss(logs) + self.prior * (total**2).sum()

        loss, trust = float(loss_at(at, moved)), TRUST
        say(f"loss {loss:.5f} of {len(self.logs)} points")
        for _ in range(rounds):
            slopes = [self._slope(record, at, unit) for unit in np.eye(count + 2 * tiles)[:count]]
            if tiles:
                shares, fixed = (
                    self._slope(record, at, [0.0] * count + [1.0 * is_share] * tiles + [1.0 * (not is_share)] * tiles)
                    for is_share in (True, False)
                )
                of_tiles = self.one_of * shares[:, None], self.one_of * fixed[:, None]
                slope = torch.cat([torch.stack(slopes, 1), *of_tiles], 1)
            else:
                slope = torch.stack(slopes, 1)
            x = torch.zeros(count + 2 * tiles, dtype=torch.float64, requires_grad=True)
            adam = torch.optim.Adam([x], lr=0.005)
            with _one_thread():
                for _ in range(300):
                    adam.zero_grad()
                    loss_at(at + slope @ x, moved + x).backward()
                    adam.step()
                    with torch.no_grad():
                        x.clamp_(-trust, trust)
            after = self.changed(record, x.tolist())
            now = torch.tensor(estimates(self.points, after, self.gpu))
            total = moved + x.detach()
            if float(loss_at(now, total)) < loss:
                record, at, moved, loss = after, now, total, float(loss_at(now, total))
            else:
                trust /= 3
            say(f"loss {loss:.5f}")
        self.moved = moved[:count].tolist()
        return record

    def _slope(self, record: Record, at: torch.Tensor, unit: Sequence[float]) -> torch.Tensor:
        after = estimates(self.points, self.changed(record, [STEP * u for u in unit]), self.gpu)
        return (torch.tensor(after) - at) / STEP
