"""8- and 4-bit weights with bf16 or fp16 activations on Hopper: dequantized in registers, multiplied by wgmma."""

from typing import TYPE_CHECKING

import torch

from tritonmm.config import Config
from tritonmm.families.mixed_input.model import bounded, candidates, estimate, lower_bound, orders, passed_over
from tritonmm.families.mixed_input.rules import programs, reason, shared_bytes
from tritonmm.gpu import Gpu
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem

if TYPE_CHECKING:
    from tritonmm.launch import Plan  # it imports Triton

name = "mixed_input"
portable = False
persistent = None
complete = True
grouped = True
dynamic = False
defaults = {
    "block_m": 64, "block_n": 128, "block_k": 128, "num_stages": 6, "num_warps": 8, "persistent": True,
    "order": RowMajor(),
}  # fmt: skip


def plan(problem: Problem, config: Config, gpu: Gpu, device: torch.device) -> "Plan":
    """As `Family.plan`."""
    from tritonmm.families.mixed_input.launch import MixedInputPlan

    return MixedInputPlan.of(problem, config, device, programs(config, problem, gpu, config.programs(problem)))


def describe(config: Config, problem: Problem, gpu: Gpu) -> list[str]:
    """As `Family.describe`."""
    count = programs(config, problem, gpu, config.programs(problem))
    return [f"{count} {'persistent programs' if config.persistent else 'programs'}"]
