"""What tritonmm does with a product, and why: config, predicted traffic and time, and the verdict of the policy."""

import textwrap
from dataclasses import dataclass, field

import torch

from tritonmm import families
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.gpu import default as default_gpu
from tritonmm.model import l2
from tritonmm.model.l2 import Traffic
from tritonmm.policy import prefers
from tritonmm.problem import Problem
from tritonmm.selection import Choice, best, estimated
from tritonmm.torch_ops.checks import check_operands
from tritonmm.torch_ops.operands import matrices
from tritonmm.torch_ops.product import gpu_of, problem_of
from tritonmm.torch_ops.routes import kept_by_torch

COLUMNS = 120
"""The width to which what is printed is wrapped."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a product is computed. Printing it says all.

    why: where the config comes from, and what its tiles make of the GPU; others: for each other kernel, the time of its
    best config by its estimate, or why it has none; traffic: what the model predicts;
    us: its microseconds, measured if `is_measured` and predicted if not;
    overrides: whether `enable()` gives the product to tritonmm, and reason: why.
    """

    problem: Problem
    gpu: Gpu
    config: Config
    why: str
    others: dict[str, str] = field(hash=False)
    traffic: Traffic
    us: float
    is_measured: bool
    overrides: bool
    reason: str

    @classmethod
    def of(cls, problem: Problem, gpu: Gpu | None = None) -> "Explanation":
        """Of a problem on a GPU, None being this machine's (the H200 where there is none).

        Raises ValueError where no config is legal.
        """
        gpu = gpu or default_gpu()
        choice = best(problem, gpu)
        kept = kept_by_torch(problem)
        return cls(
            problem,
            gpu,
            choice.config,
            _why(problem, gpu, choice),
            {kernel: _other(problem, gpu, kernel) for kernel in families.names() if kernel != choice.config.kernel},
            l2.of(problem, choice.config, gpu),
            choice.us,
            choice.is_measured,
            *((False, kept) if kept else prefers(problem, gpu)),
        )

    @property
    def kernel(self) -> str:
        return self.config.kernel

    @property
    def warning(self) -> str:
        """That operands and output exceed the GPU's memory, or ""."""
        size, memory = self.problem.compulsory_bytes, self.gpu.memory_bytes
        if not 0 < memory < size:
            return ""
        return f"operands and output take {size / 1e9:,.0f} GB, more than the {memory / 1e9:.0f} GB of {self.gpu.name}"

    def __str__(self) -> str:
        verdict = "tritonmm" if self.overrides else "torch"
        source = "measured" if self.is_measured else "predicted"
        if not (self.is_measured or self.gpu.verified):
            source += " (unverified on this GPU)"
        lines = [
            ("product", f"{self.problem} on {self.gpu.name}"),
            ("warning", self.warning),
            ("config", str(self.config)),
            ("why", self.why),
            *(("others" if i == 0 else "", f"{name:<11} {said}") for i, (name, said) in enumerate(self.others.items())),
            ("traffic", str(self.traffic)),
            ("time", f"{self.us:.1f} us, {source}"),
            ("enable()", f"{verdict}: {self.reason}"),
        ]
        return "\n".join(_wrapped(name, text) for name, text in lines if text)


def explain(a: torch.Tensor, b: torch.Tensor) -> Explanation:
    """What `tritonmm.matmul(a, b)` does, and what torch.matmul does under `enable()`; nothing is computed.

    Without a GPU it says what an H200 would do. Raises what `matmul` raises for operands that cannot be multiplied.
    """
    check_operands("explain", a, b)
    a, b, _ = matrices(a, b)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    return Explanation.of(problem_of(a, b, out, (False, False, False)), gpu_of(a.device))


def _wrapped(name: str, text: str) -> str:
    indent = " " * (11 if name not in ("others", "") else 23)
    return textwrap.fill(text, COLUMNS, initial_indent=f"{name:>9}  ", subsequent_indent=indent)


def _why(problem: Problem, gpu: Gpu, choice: Choice) -> str:
    """Why this config: where it comes from, and what its tiles make of the GPU."""
    config = choice.config
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch
    waves = f"{tiles * config.ctas * config.split_k / gpu.sms:.2f} waves"
    said = [f"{choice.origin}: {tiles} tile{'' if tiles == 1 else 's'}, {waves} on {gpu.sms} SMs"]
    said += families.family(config.kernel).describe(config, problem, gpu)
    return "; ".join(said)


def _other(problem: Problem, gpu: Gpu, kernel: str) -> str:
    """What speaks against another kernel: the estimate of its best config, or why it has none or is not considered."""
    try:
        us = estimated(problem, gpu, kernel).us
    except ValueError as error:
        return f"not legal: {str(error).partition(': ')[2]}"
    rule = families.family(kernel).passed_over(problem, gpu)
    return f"{us:.1f} us estimated" + (f"; {rule}" if rule else "")
