"""A GPU whose times and bytes are the models' by constants that do not ship, for tests of what fits them."""

import hashlib
import math
import os
import signal
from dataclasses import replace

from tritonmm import families, gpu
from tritonmm.autotune.measuring.trial import Counted
from tritonmm.model import constants, l2

H100 = gpu.spec("h100")

WRONG = {"launch": 1.6, "device memory": 0.75, "share of hopper": 0.8, "SM bandwidth": 1.3, "fixed times": 1.4}
"""Factors of the constants that ship, by the names of scales."""

NOISE = 0.03
"""The relative error of a time, the same each time."""


def record(factors=WRONG, capacity=0.4):
    """The constants of that GPU."""
    from tritonmm.autotune.fitting.scales import scales

    found = constants.shipped(H100)
    for scale in scales(("hopper", "persistent", "tile", "skinny")):
        found = scale.changed(found, math.log(factors.get(scale.name, 1.0)))
    return replace(found, l2=replace(found.l2, capacity=capacity, merged=capacity))


def time_us(problem, config, modelled, noise=NOISE):
    digest = hashlib.sha256(f"{problem} {config}".encode()).digest()
    off = (int.from_bytes(digest[:4]) / 2**31 - 1) * 3**0.5 * noise
    return families.family(config.kernel).estimate(config, problem, modelled).us * math.exp(off)


def counted(problem, config, modelled):
    moved = l2.of(problem, config, modelled)
    return Counted(1.0, 1, moved.dram_read_bytes, moved.dram_write_bytes, moved.l2_read_bytes, 0, 2, 1, 1)


class Modelled:
    """A source of such trials. $MODELLED_AS is "shipped" for constants that ship, and no noise."""

    source, regime = "gpu", "quick"

    def __init__(self):
        from tritonmm.autotune.measuring.environment import Environment

        self.gpu = H100
        self.environment = Environment("Test GPU", "1", "2", "3", "4", "5", "6", "2026-11-26")
        self.is_shipped = os.environ.get("MODELLED_AS") == "shipped"
        self.modelled = replace(H100, constants=constants.shipped(H100) if self.is_shipped else record())

    def error_ratio(self, problem, config):
        return 0.5

    def times(self, problem, config):
        from tritonmm.autotune.measuring.measure import Times
        from tritonmm.model.torch_time import torch_us

        return Times(
            time_us(problem, config, self.modelled, 0.0 if self.is_shipped else NOISE), torch_us(problem, self.gpu)
        )

    def alive(self):
        return True


def main() -> None:
    """The `tritonmm` command on one worker with `Modelled`.

    $MODELLED_COUNTERS is "none" if there is no profiler. $MODELLED_ROUNDS is the number of rounds of the fit.
    """
    from tritonmm import cli
    from tritonmm.autotune.fitting import quick
    from tritonmm.autotune.measuring import counters
    from tritonmm.autotune.tuner import cluster
    from tritonmm.autotune.tuner.worker import Setup

    signal.signal(signal.SIGINT, signal.default_int_handler)
    modelled = Modelled().modelled

    def count(pairs, **_):
        if os.environ.get("MODELLED_COUNTERS") == "none":
            raise counters.CountersError("no profiler")
        return [counted(*pair, modelled) for pair in pairs]

    counters.count = count
    quick.ROUNDS = int(os.environ.get("MODELLED_ROUNDS", quick.ROUNDS))
    cli.tune._workers = lambda *_: (cluster.local(["0"], 0), Setup("modelled_gpu:Modelled", ""))
    cli.main()
