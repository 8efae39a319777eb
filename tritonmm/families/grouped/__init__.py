"""The warp-specialized grouped GEMM for Hopper: groups of rows in tiles of any height, and groups of K."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.grouped.model import MODEL
from tritonmm.families.grouped.rules import reason, shared_bytes
from tritonmm.gpu import Gpu
from tritonmm.orders import Grouped, SwizzleMerge
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "grouped"
portable = False
persistent = True
complete = False
grouped = True
dynamic = True
defaults = {
    "block_m": 128, "block_n": 256, "block_k": 64, "num_stages": 4, "num_warps": 8,
    "order": Grouped(SwizzleMerge(8)),
}  # fmt: skip
passed_over, candidates, orders = MODEL.passed_over, MODEL.candidates, MODEL.orders
estimate, lower_bound, bounded = MODEL.estimate, MODEL.lower_bound, MODEL.bounded


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.grouped.launch import GroupedHopperPlan

    return GroupedHopperPlan.of(problem, config, device, min(config.programs(problem), gpu.sms))


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    return []
