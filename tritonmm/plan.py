"""Config -> Plan: everything that is computed once for a problem on a device, and the cache of plans."""

from collections import OrderedDict
from dataclasses import replace

import torch

from tritonmm import families, forks
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.launch import Plan
from tritonmm.launch.groups import GroupedPlan, GroupTable
from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.launch.repack import RESIDENT, RepackPlan
from tritonmm.problem import Problem

AnyPlan = Plan | RepackPlan | GroupedPlan

CACHED_PLANS = 1024
"""Plans that are kept, 1 KiB each. `launch.direct` bounds the launches that are kept; `launch.order_table` frees shared
tables with the last plan that uses them, or keeps them for graphs."""


def plan_for(problem: Problem, config: Config, device: torch.device) -> AnyPlan:
    """The plan of (problem, config, device), from the cache or new.

    Raises ValueError with the reason if the config is not legal for the problem on that device.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _CACHE.get(problem, config, device)


def bind(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> AnyPlan:
    """A new plan, for a device that is such a GPU. Raises as `plan_for`."""
    fit = config.fits(problem, gpu)
    if not fit:
        raise ValueError(f"{config} does not fit {problem} on {gpu.name}: {fit.reason}")
    if config.repack:
        inner = bind(problem.repacked(config.repack), replace(config, repack=""), gpu, device)
        return RepackPlan(problem, config, device, RESIDENT * gpu.sms, inner)
    family = families.family(config.kernel)
    if INTERPRETED and not family.portable:
        portable = ", ".join(each.name for each in families.each() if each.portable)
        raise ValueError(f"the {family.name} kernel does not run in Triton's interpreter; {portable} do")
    plan = family.plan(problem, config, gpu, device)
    return GroupedPlan(problem, config, device, GroupTable.of(problem, config), plan) if problem.ragged else plan


class _PlanCache:
    """The most recently used plans, at most `CACHED_PLANS`."""

    def __init__(self):
        self.plans: OrderedDict[tuple, AnyPlan] = OrderedDict()
        self.lock = forks.lock()

    def get(self, problem: Problem, config: Config, device: torch.device) -> AnyPlan:
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
