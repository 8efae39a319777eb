"""The portable family: any sizes, strides and alignment, on every GPU and in the interpreter."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.common_rules import portable_shared_bytes
from tritonmm.families.tile.model import MODEL
from tritonmm.families.tile.rules import programs_of_sm, reason
from tritonmm.gpu import Gpu
from tritonmm.orders import Dies, SwizzleMerge
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "tile"
portable = True
persistent = None
complete = False
grouped = True
dynamic = False
defaults = {
    "block_m": 128, "block_n": 128, "block_k": 64, "num_stages": 3, "num_warps": 8, "persistent": False,
    "order": SwizzleMerge(8),
}  # fmt: skip
passed_over, candidates, orders = MODEL.passed_over, MODEL.candidates, MODEL.orders
estimate, lower_bound, bounded = MODEL.estimate, MODEL.lower_bound, MODEL.bounded
shared_bytes = portable_shared_bytes


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.tile.launch import TilePlan

    programs = config.programs(problem)
    return TilePlan.of(
        problem,
        config,
        device,
        min(programs, gpu.sms * programs_of_sm(config, problem, gpu)) if config.persistent else programs,
    )


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    if not isinstance(config.order, Dies):
        return []
    dies, chunk = config.order.dies, config.order.chunk
    ranges = f"ranges of {chunk} neighbouring tiles" if chunk else "a range of neighbouring tiles"
    return [f"each of {dies} dies has {ranges}, if programs are assigned to the dies round robin"]
