"""The warp-specialized Hopper kernel: TMA, wgmma, persistent."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.hopper.model import MODEL
from tritonmm.families.hopper.rules import reason, shared_bytes
from tritonmm.families.hopper.schedule import Schedule
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "hopper"
portable = False
persistent = True
complete = False
grouped = False
dynamic = False
defaults = {
    "block_m": 128, "block_n": 256, "block_k": 64, "num_stages": 4, "num_warps": 8,
    "order": SwizzleMerge(8),
}  # fmt: skip
passed_over, candidates, orders = MODEL.passed_over, MODEL.candidates, MODEL.orders
estimate, lower_bound, bounded = MODEL.estimate, MODEL.lower_bound, MODEL.bounded


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.hopper.launch import HopperPlan

    how = Schedule.of(config, problem, gpu)
    return HopperPlan.of(problem, config, device, how.grid, schedule=how)


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    how = Schedule.of(config, problem, gpu)
    said = []
    if how.split and config.split_tail > 1:
        said.append(f"the last {how.split} tiles split along K by {how.splits}")
    if how.affinity:
        said.append(f"assigned to SMs in {how.affinity}, wherever the programs begin")
    return said
