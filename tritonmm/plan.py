"""A Config bound to a Problem on a device: everything that can be computed once, and the launch."""

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
import triton

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.kernels.tile import tile_kernel
from tritonmm.problem import Problem

INTERPRETED = not isinstance(tile_kernel, triton.JITFunction)
"""Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the first import."""

CACHED_PLANS = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls compute out = a @ b. Made by `plan_for`; safe to call from several threads and streams.

    programs: what the tile order launches, overflow included; grid: what the kernel is launched
    with, at most one program an SM when persistent.
    """

    problem: Problem
    config: Config
    device: torch.device
    launched: int
    programs: int
    grid: int
    order: tuple[str, tuple[int, ...], str]
    table: torch.Tensor | None

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Launch on the current stream of the plan's device; shapes and dtypes must be the problem's.

        a: (batch, m, k) or (m, k); b: (batch, k, n) or (k, n); out: (batch, m, n) or (m, n); any strides.
        """
        if self.grid:
            arguments, options = self.arguments(a, b, out)
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                tile_kernel[(self.grid,)](*arguments, **options)
        return out

    def arguments(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[tuple, dict]:
        """What the kernel is called with: its run-time arguments, and its constants and options."""
        p, c = self.problem, self.config
        strides = *_strides(a), *_strides(b), *_strides(out)
        order, factors, along = self.order
        options = {
            "BLOCK_M": c.block_m, "BLOCK_N": c.block_n, "BLOCK_K": c.block_k,
            "ORDER": order, "ALONG": along,
            "LAYOUT_A": p.layout[0], "LAYOUT_B": p.layout[1], "DIVISOR": _divisor(p),
            "PERSISTENT": c.persistent, "PRECISION": p.precision,
            "WIDE": max(strides) * max(c.block_m, c.block_n, c.block_k) >= 2**31,
            "INTERPRETED": INTERPRETED,
            "num_warps": c.num_warps, "num_stages": c.num_stages,
        }  # fmt: skip
        return (a, b, out, self.table, factors, p.m, p.n, p.k, self.launched, self.programs, *strides), options


def plan_for(problem: Problem, config: Config, device: torch.device) -> Plan:
    """The plan of (problem, config, device), from the cache where it is there.

    Raises ValueError with the reason where the config does not fit the problem on that device.
    """
    return _CACHE.get(problem, config, device)


def bind(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> Plan:
    """A new plan, as `plan_for` caches them, for a device that is such a GPU."""
    fit = config.fits(problem, gpu)
    if not fit:
        raise ValueError(f"{config} does not fit {problem} on {gpu.name}: {fit.reason}")
    tiles = config.tiles(problem)
    launched = config.order.launched(*tiles)
    programs = launched * problem.batch
    if config.order.closed_form:
        order, table = (config.order.name, config.order.factors, config.order.along), None
    else:
        order, table = ("table", (), "m"), torch.from_numpy(config.order.linear(*tiles)).to(device)
    grid = min(programs, gpu.sms) if config.persistent else programs
    return Plan(problem, config, device, launched, programs, grid, order, table)


class _PlanCache:
    """The most recently used plans, at most `CACHED_PLANS`."""

    def __init__(self):
        self.plans: OrderedDict[tuple, Plan] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, problem: Problem, config: Config, device: torch.device) -> Plan:
        key = problem, config, device
        with self.lock:
            plan = self.plans.get(key)
            if plan is not None:
                self.plans.move_to_end(key)
                return plan
        gpu = gpus.of_device(device.index) if device.type == "cuda" else gpus.default()
        plan = bind(problem, config, gpu, device)  # unlocked: two threads may make the same plan, and one is kept
        with self.lock:
            plan = self.plans.setdefault(key, plan)
            if len(self.plans) > CACHED_PLANS:
                self.plans.popitem(last=False)
        return plan


_CACHE = _PlanCache()


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    batch = x.stride(0) if x.dim() == 3 else 0
    return batch, x.stride(-2), x.stride(-1)


def _divisor(problem: Problem) -> int:
    """The largest power of two, at most 16 bytes of elements, that divides every contiguous row and row stride."""
    p = problem
    rows = p.n, {"n": p.k, "t": p.m}.get(p.layout[0], 1), {"n": p.n, "t": p.k}.get(p.layout[1], 1)
    bits = max(1, p.alignment // max(p.element_bytes, p.out_element_bytes))
    for row in rows:
        bits |= row
    return bits & -bits
