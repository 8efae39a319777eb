"""Runs trials one by one: legal, correct, how fast? Every outcome is recorded."""

import datetime
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tritonmm.autotune.measuring.sources import Source
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner.store import Store
from tritonmm.config import Config
from tritonmm.model import l2
from tritonmm.orders import Grouped, Order, RowMajor, SwizzleMerge
from tritonmm.problem import Problem


class DeviceLostError(RuntimeError):
    """A kernel has faulted, and CUDA refuses further work in this process."""


def sweep(
    problems: Iterable[Problem], configs: Iterable[Config], store: Store, source: Source
) -> Iterator[tuple[Trial, bool]]:
    """Runs each trial that the store lacks. Yields every trial, and whether it was run now.

    A trial is in the store before it is yielded, so an interruption loses at most the running trial, and the next sweep
    continues after it. An error inside a trial becomes its outcome.

    Raises ValueError for a `Table` order, which has no spelling for the store, and DeviceLostError after a trial that
    broke the CUDA context; that trial is in the store.
    """
    configs = list(configs)
    for problem in problems:
        for config in configs:
            trial = store.find(problem, config, source.environment, source.source, source.regime)
            if trial is not None:
                yield trial, False
                continue
            trial = run(problem, config, source)
            store.add(trial, source.environment)
            yield trial, True
            if not source.alive():
                raise DeviceLostError(f"the GPU's context is lost after {config} on {problem}: {trial.message}")


def run(problem: Problem, config: Config, source: Source) -> Trial:
    """The trial of `config` on `problem`. It is timed only if it is legal and its result is right. If the source cannot
    run the kernel, it has a time of the model and no check."""
    trial = Trial(
        problem=problem,
        config=config,
        source=source.source,
        regime=source.regime,
        status="ok",
        measured=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    fit = config.fits(problem, source.gpu)
    if not fit:
        return replace(trial, status="illegal", message=fit.reason)
    try:
        traffic = l2.of(problem, config, source.gpu)
        trial = replace(
            trial,
            dram_read_bytes=int(traffic.dram_read_bytes),
            dram_write_bytes=int(traffic.dram_write_bytes),
            l2_read_bytes=int(traffic.l2_read_bytes),
            hit_rate=float(traffic.hit_rate),
            traffic_source="model",
        )
        ratio = source.error_ratio(problem, config)
        if ratio is None:
            why = f"not checked: the {config.kernel} kernel does not run in Triton's interpreter"
            trial = replace(trial, message=why)
        else:
            trial = replace(trial, error_ratio=float(ratio))
            if not ratio <= 1:
                return replace(trial, status="wrong", message="the result is outside of its error bound")
        times = source.times(problem, config)
        if math.isinf(times.time_us):
            why = "no time: the model has no estimate for a tile that spills registers"
            return replace(trial, message="; ".join(filter(None, (trial.message, why))))
        return replace(trial, time_us=times.time_us, torch_us=times.torch_us)
    except Exception as error:
        return replace(trial, status="failed", message=_one_line(error))


def best_of(trials: Iterable[Trial]) -> dict[Problem, Trial]:
    """The fastest trial of each problem, in the order in which the problems first occur."""
    best: dict[Problem, Trial] = {}
    for trial in trials:
        if trial.time_us is not None and (trial.problem not in best or trial.time_us < best[trial.problem].time_us):
            best[trial.problem] = trial
    return best


def with_factor_one(trial: Trial, trials: Iterable[Trial]) -> Trial | None:
    """The timed trial that differs from `trial` only in its order, which is row-major; None if there is none.

    SwizzleMerge(1) is the same map as RowMajor and counts too. Of groups it is the order of each group's tiles.
    """
    row_major: list[Order] = [RowMajor(), SwizzleMerge(1)]
    if isinstance(trial.config.order, Grouped):
        row_major = [replace(trial.config.order, inner=order) for order in row_major]
    wanted = [replace(trial.config, order=order) for order in row_major]
    found = (t for t in trials if t.problem == trial.problem and t.config in wanted and t.time_us is not None)
    return next(found, None)


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:299] + "~"
