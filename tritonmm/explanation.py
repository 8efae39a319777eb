"""What tritonmm does with a product, and why: config, predicted traffic and time, and the verdict of the policy."""

from dataclasses import dataclass

import torch

from tritonmm import l2
from tritonmm.config import KERNELS, Config
from tritonmm.gpu import Gpu
from tritonmm.gpu import default as default_gpu
from tritonmm.l2 import Traffic
from tritonmm.ops import matrices
from tritonmm.override import prefers
from tritonmm.problem import Problem
from tritonmm.products import gpu_of, problem_of
from tritonmm.rules import check_operands
from tritonmm.select import best


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a product is computed. Printing it says all.

    why: the reason for the config; traffic, us: what the models predict of it;
    overrides: whether `enable()` gives the product to tritonmm, and reason: why.
    """

    problem: Problem
    gpu: Gpu
    config: Config
    why: str
    traffic: Traffic
    us: float
    overrides: bool
    reason: str

    @classmethod
    def of(cls, problem: Problem, gpu: Gpu | None = None) -> "Explanation":
        """Of a problem on a GPU, None being this machine's (the H200 where there is none).

        Raises ValueError where no config is legal.
        """
        gpu = gpu or default_gpu()
        us, config = best(problem, gpu)
        overrides, reason = prefers(problem, gpu)
        return cls(problem, gpu, config, _why(problem, gpu, config), l2.of(problem, config, gpu), us, overrides, reason)

    @property
    def kernel(self) -> str:
        return self.config.kernel

    def __str__(self) -> str:
        verdict = "tritonmm" if self.overrides else "torch"
        lines = {
            "product": f"{self.problem} on {self.gpu.name}",
            "config": str(self.config),
            "why": self.why,
            "traffic": str(self.traffic),
            "time": f"{self.us:.1f} us, predicted",
            "enable()": f"{verdict}: {self.reason}",
        }
        return "\n".join(f"{name:>9}  {value}" for name, value in lines.items())


def explain(a: torch.Tensor, b: torch.Tensor) -> Explanation:
    """What `tritonmm.matmul(a, b)` does, and what torch.matmul does under `enable()`; nothing is computed.

    Without a GPU it says what an H200 would do. Raises what `matmul` raises for operands that cannot be multiplied.
    """
    check_operands("explain", a, b)
    a, b, _ = matrices(a, b)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    return Explanation.of(problem_of(a, b, out, (False, False, False)), gpu_of(a.device))


def _why(problem: Problem, gpu: Gpu, config: Config) -> str:
    """Why this config: what its tiles make of the GPU, and why not another kernel."""
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch
    waves = tiles * config.ctas * config.split_k / gpu.sms
    said = [f"the shortest estimate of all legal configs: {tiles} tiles, {waves:.2f} waves on {gpu.sms} SMs"]
    if config.split_tail > 1:
        said.append(f"the last {config.split_tiles(problem, gpu)[0]} tiles split along K by {config.split_tail}")
    for kernel in KERNELS:
        if kernel != config.kernel:
            try:
                us = best(problem, gpu, kernel)[0]
                said.append(f"the {kernel} kernel at best {us:.1f} us")
            except ValueError as error:
                said.append(f"no {kernel} kernel: {str(error).partition(': ')[2]}")
    return "; ".join(said)
