"""What tritonmm does with a product, and why: config, predicted traffic and time, and the verdict of the policy."""

from dataclasses import dataclass

import torch

from tritonmm import l2, weights
from tritonmm.config import KERNELS, Config
from tritonmm.gpu import Gpu
from tritonmm.gpu import default as default_gpu
from tritonmm.l2 import Traffic
from tritonmm.ops import matrices
from tritonmm.override import prefers
from tritonmm.problem import Problem
from tritonmm.products import gpu_of, problem_of
from tritonmm.rules import check_operands
from tritonmm.seats import seats
from tritonmm.select import Choice, best, estimated


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a product is computed. Printing it says all.

    why: where the config comes from, and what speaks for it; traffic: what the model predicts;
    us: its microseconds, measured if `is_measured` and predicted if not;
    overrides: whether `enable()` gives the product to tritonmm, and reason: why.
    """

    problem: Problem
    gpu: Gpu
    config: Config
    why: str
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
        traffic = l2.of(problem, choice.config, gpu)
        why = _why(problem, gpu, choice)
        return cls(problem, gpu, choice.config, why, traffic, choice.us, choice.is_measured, *prefers(problem, gpu))

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
            "time": f"{self.us:.1f} us, {'measured' if self.is_measured else 'predicted'}",
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


def _why(problem: Problem, gpu: Gpu, choice: Choice) -> str:
    """Why this config: where it comes from, what its tiles make of the GPU, and why not another kernel."""
    config = choice.config
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch
    waves = f"{tiles * config.ctas * config.split_k / gpu.sms:.2f} waves"
    if config.kernel == "weights":
        kind = "persistent programs" if config.persistent else "programs"
        waves = f"{weights.programs(config, problem, gpu, tiles)} {kind}"
    said = [f"{choice.origin}: {tiles} tiles, {waves} on {gpu.sms} SMs"]
    if config.split_tail > 1:
        said.append(f"the last {config.split_tiles(problem, gpu)[0]} tiles split along K by {config.split_tail}")
    if dealt := seats(config, problem, gpu):
        said.append(f"dealt to SMs in {dealt}, wherever the programs begin")
    for kernel in KERNELS:
        if kernel != config.kernel:
            try:
                us = estimated(problem, gpu, kernel).us
                said.append(f"the {kernel} kernel at best {us:.1f} us by its estimate")
            except ValueError as error:
                said.append(f"no {kernel} kernel: {str(error).partition(': ')[2]}")
    return "; ".join(said)
