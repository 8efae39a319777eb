"""Predictions of the models for the rows of a results file, computed when a figure is drawn.

A results file has the predictions of the time it was written; a figure shows the present ones.
"""

import pandas as pd

from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model import l2
from tritonmm.problem import Problem

COLUMNS = ("predicted_us", "predicted_dram_read_bytes", "predicted_l2_read_bytes", "predicted_hit_rate")
"""Columns that `with_predictions` adds: microseconds, bytes, and a rate from 0 to 1."""


def gpu_of(about: dict[str, str]) -> Gpu | None:
    """The GPU that the comment lines name, from its datasheet; None if `tritonmm.gpu` does not know it."""
    return gpus.named(about.get("gpu", ""))


def unverified(about: dict[str, str]) -> str:
    """A remark for predictions on a GPU that the models were not compared with; else ""."""
    gpu = gpu_of(about)
    return "" if gpu and gpu.verified else ", unverified"


def with_predictions(rows: pd.DataFrame, about: dict[str, str]) -> pd.DataFrame:
    """The rows, as `rows.ok` returns them, with `COLUMNS`; these are NaN for an unknown GPU."""
    gpu = gpu_of(about)
    if gpu is None:
        return rows.assign(**dict.fromkeys(COLUMNS, float("nan")))
    values = []
    for row in rows.itertuples():
        problem, config = problem_of(row), config_of(row)
        traffic = l2.of(problem, config, gpu)
        us = families.family(config.kernel).estimate(config, problem, gpu).us
        values.append((us, traffic.dram_read_bytes, traffic.l2_read_bytes, traffic.hit_rate))
    return rows.assign(**dict(zip(COLUMNS, zip(*values, strict=True), strict=True)))


def problem_of(row) -> Problem:
    """The problem of a row."""
    groups = {"ragged": row.ragged, "groups": int(row.groups)}
    return space.problem(row.m, row.n, row.k, batch=row.batch, dtype=row.dtype, layout=row.layout, **groups)


def config_of(row) -> Config:
    """The config of a row."""
    numbers = ("block_m", "block_n", "block_k", "num_stages", "num_warps", "split_k", "split_tail")
    return Config(
        kernel=row.kernel,
        persistent=bool(row.persistent),
        order=orders.parse(row.order),
        cluster=row.cluster,
        repack=row.repack,
        **{name: int(getattr(row, name)) for name in numbers},
    )
