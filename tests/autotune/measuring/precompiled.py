"""Compiles as the tuner does, or launches what was compiled, and prints how many kernels the cache had.

    python precompiled.py ahead | here | launch

ahead: for an H200, with no GPU. here: the arguments of a launch, with memory of the CPU.
launch: on the GPU. Run in a process of its own, since the rest of the tests interpret kernels.
"""

import sys

import torch
import triton
from triton.runtime import driver

from tritonmm import gpu as gpus
from tritonmm import launch as launching
from tritonmm import orders
from tritonmm import plan as plans
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.precompile import Elsewhere, precompile
from tritonmm.config import Config
from tritonmm.launch import early_start, workspace

H200 = gpus.spec("h200")
GROUPS = orders.parse("groups/swizzle-merge:2")
CASES = [
    (space.problem(4096, 4096, 4096), Config("tile", 32, 32, 32, 3, 4)),
    (space.problem(1, 4095, 1000), Config("tile", 16, 32, 32, 3, 4)),
    (space.problem(512, 512, 512, dtype="tf32", batch=3), Config("tile", 32, 32, 16, 4, 4)),
    (space.problem(1000, 4096, 1024), Config("persistent", 64, 64, 64, 4, 4, persistent=True)),
    (space.problem(1000, 4096, 1024, layout="nn"), Config("hopper", 64, 64, 64, 8, 4, persistent=True)),
    (space.problem(1000, 4096, 1024), Config("hopper", 64, 64, 64, 8, 4, split_tail=2, persistent=True)),
    (space.problem(1000, 4095, 1023), Config("hopper", 64, 64, 64, 8, 4, persistent=True, repack="ab")),
    (space.problem(1, 4096, 4096), Config("skinny", 1, 8, 1024, 3, 4, split_k=2, order=orders.RowMajor())),
    (space.problem(512, 512, 512, dtype="fp8-block"), Config("hopper", 64, 64, 128, 8, 4, persistent=True)),
    (space.problem(512, 512, 512, dtype="fp8"), Config("tile", 32, 32, 64, 4, 4)),
    (space.problem(1, 4096, 4096, dtype="bf16-int8"), Config("skinny", 1, 4, 1024, 4, 2, order=orders.RowMajor())),
    (
        space.problem(1000, 512, 256, ragged="m", groups=5),
        Config("tile", 32, 32, 32, 3, 4, persistent=True, order=GROUPS),
    ),
    (
        space.problem(512, 256, 999, ragged="k", groups=40),
        Config("tile", 32, 32, 32, 3, 4, persistent=True, order=GROUPS),
    ),
    (space.problem(16, 4096, 4096, dtype="bf16-fp8"), Config("mixed_input", 16, 128, 128, 4, 8, persistent=True)),
]


def here(problem, config) -> None:
    """Compiles what a launch on an H200 would, for operands that have memory and a device that is CUDA's."""
    driver.set_active(Elsewhere(H200))
    cuda = torch.device("cuda", 0)
    launching.early_start = lambda device: early_start(cuda)
    workspace.sums = lambda count, device: torch.empty(count)
    workspace.flags = lambda count, device: torch.zeros(count, dtype=torch.int32)
    plan = plans.bind(problem, config, H200, cuda)
    cpu = torch.device("cpu")
    for kernel, arguments, options in plan.kernels(*space.operands(problem, cpu), **space.keywords(problem, cpu)):
        kernel.warmup(*arguments, grid=(1,), **options)


def launch(problem, config) -> None:
    device = torch.device("cuda", 0)
    plans.plan_for(problem, config, device)(*space.operands(problem, device), **space.keywords(problem, device))
    torch.cuda.synchronize()


def main(how: str) -> None:
    hits = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    for problem, config in CASES:
        if how == "ahead":
            precompile(problem, config, H200)
        else:
            {"here": here, "launch": launch}[how](problem, config)
    print(f"{len(hits)} kernels, {sum(hits)} from the cache")


if __name__ == "__main__":
    main(*sys.argv[1:])
