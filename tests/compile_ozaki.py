"""The kernels of exact int8 products that the compile gate compiles, besides those of families."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.launch.steps import Step
from tritonmm.ozaki import decide, merge, planes, reconstruct
from tritonmm.ozaki.decide import Verdict
from tritonmm.ozaki.panels import products_of, round_up
from tritonmm.ozaki.planes import Operand
from tritonmm.plan import bind
from tritonmm.problem import Problem
from tritonmm.selection import choose

SPILLS = {80: 16, 90: 16, 100: 16, 103: 24}
"""Bytes that a kernel may store and load for want of registers, by compute capability: one for fp32 does on sm_80, and
one for fp64 on sm_103, with Triton 3.9; norms of unaligned fp32 on sm_90 and sm_100 with 3.6."""


@dataclass(frozen=True)
class OzakiCase:
    """A product of which all launches are compiled, the products of planes only where they can be skipped. layout: "n"
    or "t" for each operand."""

    dtype: torch.dtype
    moduli: int
    layout: str = "nn"
    size: int = 4096
    everything: bool = False  # alpha, bias, C, the rule, parts of K and a native product, all that can be skipped

    def steps(self, gpu: gpus.Gpu) -> Iterator[Step]:
        """The launches on a GPU, in turn."""
        n, moduli = self.size, self.moduli
        a, b, out = (torch.empty(1, n, n, dtype=self.dtype, device="meta") for _ in range(3))
        a, b = (x.mT if letter == "t" else x for x, letter in zip((a, b), self.layout, strict=True))
        both = [Operand.of(x, moduli, round_up(n), self.everything) for x in (a, b.mT)]
        yield from planes.steps(*both, moduli)
        of_a, of_b = (operand.into for operand in both)
        if self.everything:  # scales by a launch of their own, and one operand alone
            long = torch.empty(1, 64, 8192, dtype=self.dtype, device="meta")
            yield from planes.steps(Operand.of(long, moduli, 64, False), Operand.of(long, moduli, 64, False), moduli)
            yield from planes.steps(both[1], None, moduli)
        proved = refused = None
        if self.everything:
            verdict = proved, refused = Verdict(*(torch.empty(1, dtype=torch.int32, device="meta") for _ in range(2)))
            yield from decide.steps(of_a, of_b, n, self.dtype, moduli, verdict, True)
        sums = torch.empty(moduli, n, round_up(n), dtype=torch.int8, device="meta")
        if self.everything:
            yield from skipped_products(gpu, moduli, refused)
            yield from merge.steps(sums, torch.empty_like(sums), moduli, refused)
        epilogue = reconstruct.Epilogue(0.5, 2.0, out, out[0, 0]) if self.everything else reconstruct.Epilogue()
        yield from reconstruct.steps(sums, a, b, of_a, of_b, out, epilogue, moduli, refused)
        if self.everything:
            x, y, to = (torch.empty(1, 4096, 4096, dtype=self.dtype, device="meta") for _ in range(3))
            problem = Problem.of(x, y, to)
            plan = bind(problem, choose(problem, gpu), gpu, x.device)
            assert plan.skippable, plan
            yield Step(plan.kernel, plan.grid, *plan.arguments(x, y, to, skip=proved))


SPLIT = Config("hopper", 128, 128, 128, 6, 8, split_k=2, persistent=True)


def skipped_products(gpu: gpus.Gpu, moduli: int, refused: torch.Tensor) -> Iterator[Step]:
    """The products of planes of large operands as they are chosen, and in parts of K by the Hopper kernel."""
    n = 4096
    problem = products_of(n, n, n, 1, moduli)
    a, b, out = (torch.empty(moduli, n, n, dtype=torch.int8, device="meta") for _ in range(3))
    chosen = choose(problem, gpu)
    for config in (chosen, SPLIT) if chosen.kernel == SPLIT.kernel else (chosen,):
        plan = bind(problem, config, gpu, a.device)
        assert plan.skippable, plan
        yield Step(plan.kernel, plan.grid, *plan.arguments(a, b.mT, out, skip=refused))


def ozaki_cases():
    """(gpu, case): both dtypes, layouts, aligned and ragged sizes, on every target."""
    for name in ("a100", "rtx3090", "rtx4090", "h200", "b200", "b300", "rtx5090", "mi300x", "mi355x"):
        yield gpus.spec(name), OzakiCase(torch.float64, 15)
    for name in ("a100", "h200", "b200", "mi300x"):
        gpu = gpus.spec(name)
        yield gpu, OzakiCase(torch.float32, 7)
        yield gpu, OzakiCase(torch.float32, 8, "tt", 1001, everything=True)
        yield gpu, OzakiCase(torch.float64, 16, "tt", 1001, everything=True)
