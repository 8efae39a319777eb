"""Fits the time model's constants to measured times, and says what is chosen by them.

    python -m tritonmm.autotune.studies.fit_time            # judge the record that ships
    python -m tritonmm.autotune.studies.fit_time --write    # fit it again; minutes

The data are committed results files of a GPU: exhaustive sweeps of random products, in which the configs of a product
differ in their tiles, and sweeps over tile orders, in which they differ in nothing else. Half of the products give the
constants, the others are only predicted.

The loss is what choosing by the estimates costs, in logarithms: the time of the config that would be chosen, over the
best one's, with a soft minimum; to which the squared errors of the estimates are added, those within a product for more
than those of a whole product. Its gradient is that of the estimates, by numerical derivatives of the model itself.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

import click
import numpy as np
import torch

from tritonmm import families
from tritonmm.autotune.studies import regret
from tritonmm.autotune.studies.measured_products import RESULTS
from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu, spec
from tritonmm.model import constants
from tritonmm.model.record import Limits, Record, Tile, spelled, values
from tritonmm.model.time import Launch, Moved, whole
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem

SWEEPS = tuple(f"random{seed}" for seed in (60, 64, 66, 68, 70, 72, 74, 76, 78, 80, 82))
ORDERS = ("orders62", "orders93", "orders-large", "l2", "l2-16384")
"""Results files of a GPU, by what stands behind its name."""

COMMAND = "python -m tritonmm.autotune.studies.fit_time --write"

NEAR, FAR = 1.3, 3.0
"""Errors count of configs that take up to so many times as long as the best of a GEMM, and choices of all up to FAR."""

SHARED = ("launch_us", "first_us", "lone_bandwidth", "split_us", "part_us", "partial_bandwidth")
LIMITS = (
    "again", "write_page", "sm_bandwidth", "l2_bandwidth", "crossed", "half_lines", "late", "step_overlap", "overlap",
    "absent", "drain_us",
)  # fmt: skip
"""What is fitted besides the tiles. `stream` is what a copy reaches."""

WITHIN, IN_ORDERS, WHOLE, CHOICE = 1.0, 3.0, 0.2, 0.3
"""Weights in the loss: of squared errors around the mean of a GEMM's configs, and of a config's orders; of the squared
means; and of what choosing by the estimates costs. Round numbers."""

SOFT = 0.01
"""The temperature of the soft minimum: an estimate longer by so much, in logarithms, is chosen e times less often."""

STEP, TRUST, ROUNDS = 0.01, 0.1, 6
"""Of the logarithms of constants: the step of derivatives, and the most that a round of the fit changes."""


@dataclass(frozen=True, slots=True)
class Points:
    """Measured configs.

    group: numbers the sets from which a config is chosen; is_order: whether a set has orders of one config. is_free:
    whether a config's estimate is fitted; other families' only compete.
    """

    problems: list[Problem]
    configs: list[Config]
    us: np.ndarray
    group: np.ndarray
    is_order: np.ndarray
    is_free: np.ndarray

    @property
    def best_us(self) -> np.ndarray:
        """The shortest time of each point's group."""
        least = np.full(self.group.max() + 1, math.inf)
        np.minimum.at(least, self.group, self.us)
        return least[self.group]


def is_seen(problem: Problem) -> bool:
    """Whether the fit may see a product: every other one, by a digest of its sizes."""
    p = problem
    return hashlib.sha256(f"{p.batch}x{p.m}x{p.n}x{p.k}".encode()).digest()[0] % 2 == 0


def read(gpu: Gpu, name: str, seen: bool) -> regret.Measured:
    """The products of a results file that the fit may see, or the others."""
    found = [path for end in (".csv", ".csv.gz") if (path := RESULTS / f"{gpu.name}-{name}{end}").is_file()]
    if not found:
        raise FileNotFoundError(f"{RESULTS} has no {gpu.name}-{name}.csv: results are in a checkout only")
    measured, _ = regret.read(found[0])
    return {problem: times for problem, times in measured.items() if is_seen(problem) == seen}


def points(
    gpu: Gpu, seen: bool, sweeps: Iterable[str] = SWEEPS, orders: Iterable[str] = ORDERS, kernels: Sequence[str] = ()
) -> Points:
    """The points of results files that take at most `FAR` times as long as their group's best.

    kernels: the families whose listed tiles are free.
    """
    found: list[tuple[Problem, Config, float, int, bool, bool]] = []
    groups = 0
    for name, is_order in [(name, False) for name in sweeps] + [(name, True) for name in orders]:
        for problem, times in read(gpu, name, seen).items():
            apart: dict[Config | None, dict[Config, float]] = {}
            for config, us in times.items():
                apart.setdefault(replace(config, order=RowMajor()) if is_order else None, {})[config] = us
            for of_group in apart.values():
                near = {config: us for config, us in of_group.items() if us <= FAR * min(of_group.values())}
                if len(near) > 1:
                    for config, us in near.items():
                        is_free = config.kernel in kernels and _is_listed(config, problem, gpu)
                        found.append((problem, config, us, groups, is_order, is_free))
                    groups += 1
    problems, configs, *columns = zip(*found, strict=True)
    return Points(list(problems), list(configs), *map(np.array, columns))


def _is_listed(config: Config, problem: Problem, gpu: Gpu) -> bool:
    model = model_of(config.kernel)
    tile = model.tile_of(config, problem, gpu)
    return tile in model.tiles(problem, gpu) and tile.num_stages == config.num_stages and not config.cluster


def model_of(kernel: str) -> TiledModel:
    """The model of a family of listed tiles. Raises ValueError for other families."""
    model = getattr(families.family(kernel), "MODEL", None)
    if not isinstance(model, TiledModel):
        raise ValueError(f"{kernel} has no listed tiles, whose model could be fitted here")
    return model


def estimates(found: Points, record: Record, gpu: Gpu) -> np.ndarray:
    """Logarithms of the microseconds of all free points by a record; 0 of the others."""
    us = np.ones(len(found.us))
    launches: dict[tuple[Config, Problem], tuple[Launch, Moved]] = {}
    for at in np.flatnonzero(found.is_free):
        problem, config = found.problems[at], found.configs[at]
        model, one = model_of(config.kernel), whole(config)
        limits = record.limits(config.kernel)
        if (one, problem) not in launches:
            tiles = record.tiles(config.kernel, model.kind(problem))
            tile = next(t for t in tiles if t.blocks == _blocks(one) and t.num_warps == one.num_warps)
            terms = model.terms(one, problem, gpu)
            launch = Launch.of(one, tile, limits, terms, problem, gpu, record.shared)
            launches[one, problem] = launch, launch.moved(one, problem, gpu, limits, terms.has_affinity)
        launch, moved = launches[one, problem]
        us[at] = launch.time(moved, config.split_k, config.split_tail, limits, gpu, record.shared).us
    return np.log(us)


def _blocks(config: Config) -> tuple[int, int, int]:
    return *config.cta_tile, config.block_k


@dataclass(frozen=True, slots=True)
class Constant:
    """One number of a record, or one of each tile: `changed` multiplies it by e to a power."""

    name: str
    changed: Callable[[Record, float], Record]


def free(kernels: Sequence[str]) -> list[Constant]:
    """What is fitted of those families, which have the same limits, and of what all families share. Of tiles see
    `of_tiles`."""

    def of_shared(name: str) -> Constant:
        return Constant(
            name,
            lambda record, x: replace(
                record, shared=replace(record.shared, **{name: getattr(record.shared, name) * math.exp(x)})
            ),
        )

    def of_limits(name: str) -> Constant:
        return Constant(
            name,
            lambda record, x: with_limits(
                record, kernels, lambda limits: replace(limits, **{name: getattr(limits, name) * math.exp(x)})
            ),
        )

    return [*map(of_shared, SHARED), *map(of_limits, LIMITS)]


def with_limits(record: Record, kernels: Sequence[str], change: Callable[[Limits], Limits]) -> Record:
    found = {
        name: section | {"limits": change(section["limits"])} if name in kernels else section
        for name, section in record.families.items()
    }
    return replace(record, families=found)


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


class Fit:
    """A fit of the constants of some families to some points."""

    def __init__(self, found: Points, kernels: Sequence[str], gpu: Gpu):
        self.points, self.gpu = found, gpu
        self.constants = free(kernels)
        pairs = zip(found.problems, found.configs, found.is_free, strict=True)
        keys = [
            (config.kernel, model_of(config.kernel).kind(problem), _blocks(config), config.num_warps)
            if is_free
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
        """Of the logarithms of the free estimates."""
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
            loss = loss + factor * around[is_kind].sum() / self.counts[is_kind].sum() + CHOICE * chosen[kind].mean()
        return loss

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

        return with_tiles(record, change)

    def run(self, record: Record, rounds: int, say: Callable[[str], None]) -> Record:
        """The record with the least loss that is found."""
        count, tiles = len(self.constants), len(self.tiles)
        at = torch.tensor(estimates(self.points, record, self.gpu))
        loss, trust = float(self.loss(at)), TRUST
        say(f"loss {loss:.5f} of {len(self.logs)} points")
        for _ in range(rounds):
            slopes = [self._slope(record, at, unit) for unit in np.eye(count + 2 * tiles)[:count]]
            shares, fixed = (
                self._slope(record, at, [0.0] * count + [1.0 * is_share] * tiles + [1.0 * (not is_share)] * tiles)
                for is_share in (True, False)
            )
            of_tiles = self.one_of * shares[:, None], self.one_of * fixed[:, None]
            slope = torch.cat([torch.stack(slopes, 1), *of_tiles], 1)
            x = torch.zeros(count + 2 * tiles, dtype=torch.float64, requires_grad=True)
            adam = torch.optim.Adam([x], lr=0.005)
            for _ in range(300):
                adam.zero_grad()
                self.loss(at + slope @ x).backward()
                adam.step()
                with torch.no_grad():
                    x.clamp_(-trust, trust)
            after = self.changed(record, x.tolist())
            now = torch.tensor(estimates(self.points, after, self.gpu))
            if float(self.loss(now)) < loss:
                record, at, loss = after, now, float(self.loss(now))
            else:
                trust /= 3
            say(f"loss {loss:.5f}")
        return record

    def _slope(self, record: Record, at: torch.Tensor, unit: Sequence[float]) -> torch.Tensor:
        after = estimates(self.points, self.changed(record, [STEP * u for u in unit]), self.gpu)
        return (torch.tensor(after) - at) / STEP


def report(gpu: Gpu, seen: bool) -> Iterator[str]:
    """How good choices of tiles and of orders are by the record of this installation, and how far off its times.

    seen: on the GEMMs that the fit has seen, or on the others.
    """
    reached: list[float] = []
    for name in SWEEPS:
        judged = regret.regrets(read(gpu, name, seen), gpu, ("model",))
        found = [each.reached for each in judged if each.reached is not None]
        reached += found
        yield f"{name:<14} {_mean(found):.4f} of the best, {sum(x < 0.85 for x in found)} of {len(found)} below 0.85"
    yield f"{'all':<14} {_mean(reached):.4f} of the best, {sum(x < 0.85 for x in reached)} of {len(reached)} below 0.85"
    for name in ORDERS:
        found = points(gpu, seen, (), (name,))
        logs = np.log(
            [
                families.family(c.kernel).estimate(c, p, gpu).us
                for p, c in zip(found.problems, found.configs, strict=True)
            ]
        )
        costs, errors = [], []
        for group in range(found.group.max() + 1):
            of_group = found.group == group
            us = found.us[of_group]
            costs.append(us[logs[of_group].argmin()] / us.min())
            errors.append(np.exp(logs[of_group][us.argmin()]) / us.min() - 1)
        near = np.mean(np.array(costs) <= 1.01)
        yield (
            f"{name:<14} {near:.1%} of {len(costs)} orders within 1% of the best; estimates are off by "
            f"{np.median(np.abs(errors)):.1%} in the median, {np.median(errors):+.1%}"
        )


def _mean(found: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, found)) / len(found))


@click.command()
@click.option("--gpu", default="h200", show_default=True, help="The GPU of the results and the record.")
@click.option("--write", is_flag=True, help="Fit the record and write it.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Of the fit.")
def main(gpu: str, write: bool, rounds: int) -> None:
    """Fit the constants of the time model, and judge what is chosen by them."""
    try:
        found = spec(gpu)
        if write:
            kernels = "hopper", "persistent"
            fit = Fit(points(found, True, kernels=kernels), kernels, found)
            record = fit.run(constants.of(found), rounds, click.echo)
            files = ", ".join(f"{found.name}-{name}" for name in (*SWEEPS, *ORDERS))
            record = replace(
                record,
                made={**record.made, "shared, hopper, persistent": f"{COMMAND}, {date.today()}; products: {files}"},
            )
            path = constants.FOLDER / f"{found.name}.json"
            path.write_text(spelled(values(record)), encoding="utf-8")
            click.echo(f"wrote {path}; run again without --write to judge it")
            return
        for seen, said in ((True, "Fitted to:"), (False, "Only predicted:")):
            click.echo(said)
            for line in report(found, seen):
                click.echo(line)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
