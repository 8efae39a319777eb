"""Trials for tests, and where they were measured."""

from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner.store import Store
from tritonmm.config import Config

HERE = Environment("H200", "580.1", "13.0", "2.15", "3.9", "0.1", "abc", "2026-11-20")
PROBLEM = space.problem(1000, 4096, 4096)
CONFIG = Config(order=orders.SwizzleMerge(16, 8, along="n"))


def trial(**fields) -> Trial:
    known = {
        "problem": PROBLEM,
        "config": CONFIG,
        "source": "gpu",
        "regime": "burst",
        "status": "ok",
        "measured": "2026-11-20T10:00:00+00:00",
        "time_us": 50.0,
        "torch_us": 55.5,
        "dram_read_bytes": 2**40,
        "dram_write_bytes": 8_192_000,
        "l2_read_bytes": 2**41,
        "hit_rate": 0.5,
        "traffic_source": "model",
        "error_ratio": 0.99,
    }
    return Trial(**known | fields)


def found(store: Store, like: Trial, environment: Environment = HERE) -> Trial | None:
    return store.find(like.problem, like.config, environment, like.source, like.regime)
