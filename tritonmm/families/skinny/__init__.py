"""The skinny family: GEMMs with few rows or few columns, as fast as the larger operand can be read."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.common_rules import portable_shared_bytes
from tritonmm.families.skinny.model import bounded, candidates, estimate, lower_bound, orders, passed_over
from tritonmm.families.skinny.rules import reason
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "skinny"
portable = True
persistent = False
complete = True
grouped = False
dynamic = False
defaults = {
    "block_m": 16, "block_n": 64, "block_k": 128, "num_stages": 4, "num_warps": 4,
    "order": RowMajor(),
}  # fmt: skip
shared_bytes = portable_shared_bytes


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.skinny.launch import SkinnyPlan

    return SkinnyPlan.of(problem, config, device, config.programs(problem) * config.split_k)


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    return []
