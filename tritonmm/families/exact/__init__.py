"""Exact fp32 and fp64 on Hopper: both operands are multiplied from registers."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.common_rules import portable_shared_bytes
from tritonmm.families.exact.model import MODEL
from tritonmm.families.exact.rules import reason
from tritonmm.gpu import Gpu
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "exact"
portable = False
persistent = False
complete = False
grouped = False
dynamic = False
defaults = {
    "block_m": 64, "block_n": 64, "block_k": 16, "num_stages": 4, "num_warps": 2,
    "order": SwizzleMerge(8),
}  # fmt: skip
passed_over, candidates, orders = MODEL.passed_over, MODEL.candidates, MODEL.orders
estimate, lower_bound, bounded = MODEL.estimate, MODEL.lower_bound, MODEL.bounded
shared_bytes = portable_shared_bytes


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.exact.launch import ExactPlan

    return ExactPlan.of(problem, config, device, config.programs(problem) * config.split_k)


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    return []
