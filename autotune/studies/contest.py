"""Times all configs of a problem against each other, in rounds of random order, at the same clocks.

    python -m tritonmm.autotune.studies.contest autotune/results/h200-l2.csv --rounds 15

A sweep times each config in pairs with torch, but two configs are minutes apart, and repeated timings of one config
differ by up to 2%. Here every round runs every config once. The medians of the same config under two names differ by
0.2% in the median of eleven pairs, 1.1% at most. The command replaces the times in a results file and keeps its other
columns.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import torch

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import results_file, space, verify
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.group_sizes import sizes_of
from tritonmm.autotune.measuring.measure import GraphReplay, Replay
from tritonmm.autotune.measuring.precompile import precompile_all
from tritonmm.autotune.measuring.sources import bound_launch, operand_sets, torch_replay
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.plan import plan_for
from tritonmm.problem import Problem

REST = 0.012
"""Idle seconds before each replay, so that the GPU cools down and its clock recovers."""


def contest(
    arms: dict[object, Replay],
    rounds: int,
    *,
    seconds: float,
    idle: float = REST,
    rest: Callable[[float], None] = time.sleep,
) -> dict[object, float]:
    """The median microseconds of each arm over all rounds.

    arms: replays by name.
    seconds: duration of one replay.
    idle: seconds of rest before each replay.
    rest: waits, in seconds.
    """
    shuffle = random.Random(0)
    times = {name: [] for name in arms}
    for _ in range(rounds):
        for name in shuffle.sample(list(arms), len(arms)):
            rest(idle)
            times[name].append(arms[name](seconds) * 1e6)
    return {name: statistics.median(of_arm) for name, of_arm in times.items()}


def of_problem(
    problem: Problem, configs: Sequence[Config], rounds: int, gpu: Gpu, idle: float = REST
) -> dict[Config | None, float]:
    """Microseconds of every config, and of torch under None if it has such a GEMM. Operands are random and exceed the
    L2.

    Raises RuntimeError if a config cannot be launched.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    sets, keywords = operand_sets(problem, device, gpu, sizes_of(problem)), space.keywords(problem, device)
    torchs, _ = torch_replay(problem, sets, keywords)
    arms = {None: torchs} if torchs else {}
    arms |= {config: GraphReplay(bound_launch(problem, config, device, keywords), sets) for config in configs}
    try:
        return contest(arms, rounds, seconds=0.001, idle=idle)
    finally:
        for arm in arms.values():
            arm.free()


def trials(problem: Problem, configs: Sequence[Config], rounds: int, gpu: Gpu, idle: float = REST) -> list[Trial]:
    """Checks each config alone, then times the correct ones against each other in rounds of random order.

    A config that cannot run is a trial of status failed. Raises RuntimeError if the CUDA context is lost.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    check = verify.Check(problem, device)
    found = {}
    for config in configs:
        trial = Trial(problem, config, "gpu", "burst", "ok", now)
        try:
            ratio = check.error_ratio(plan_for(problem, config, device))
            found[config] = replace(trial, status="ok" if ratio <= 1 else "wrong", error_ratio=ratio)
        except Exception as error:  # whatever the compiler, the driver or torch raises is recorded
            found[config] = replace(trial, status="failed", message=f"{type(error).__name__}: {error}".split("\n")[0])
    del check
    right = [config for config, trial in found.items() if trial.status == "ok"]
    times = of_problem(problem, right, rounds, gpu, idle) if right else {}
    for config in right:
        found[config] = replace(found[config], time_us=times[config], torch_us=times.get(None))
    return list(found.values())


@click.command()
@click.argument("path", metavar="RESULTS", type=click.Path(exists=True, dir_okay=False, writable=True, path_type=Path))
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, help="Replays of each config.")
def main(path: Path, rounds: int) -> None:
    """Time all configs in RESULTS, a sweep's CSV file, again, and replace its times."""
    by_problem: dict[Problem, dict[Config, list[results_file.Row]]] = {}
    try:
        about, columns, rows = results_file.read(path)
        for row, problem, config in results_file.timed(path, rows):
            by_problem.setdefault(problem, {}).setdefault(config, []).append(row)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    gpu = gpus.of_device(torch.cuda.current_device())
    precompile_all([(problem, config) for problem, configs in by_problem.items() for config in configs], gpu)
    for problem, configs in by_problem.items():
        try:
            times = of_problem(problem, list(configs), rounds, gpu)
        except RuntimeError as error:
            raise click.ClickException(f"{problem}: {error}") from None
        torch_us = times.pop(None, None)
        for config, of_config in configs.items():
            for row in of_config:
                tflops = problem.flops / times[config] / 1e6
                row |= {"time_us": times[config], "torch_us": torch_us, "tflops": tflops}
        torchs = f"torch {torch_us:9.2f} us, " if torch_us else ""
        click.echo(f"{problem!s:<28} {torchs}best {min(times.values()):9.2f} us")
    here = Environment.here(torch.cuda.get_device_name())
    about["times"] = f"{here.gpu}, Triton {here.triton}, {here.date}, commit {here.commit}: burst, medians of {rounds}"
    about["times"] += f" rounds of all configs in random order, {REST * 1e3:g} ms of rest"
    results_file.write(path, about, columns, rows)


if __name__ == "__main__":
    main()
