"""Shows that the compile gate finds rules that count too little shared memory, and kernels that do not wait for the
previous grid before anything else: exits with 1 if it finds nothing wrong with one. Run in a process of its own, as the
gate is.

Where tensor cores read shared memory (sm_90 and sm_100) a pipeline of n stages has n buffers, elsewhere n - 1: there
only a rule that forgets two counts too little.
"""

import os
import sys
import tempfile
from dataclasses import replace

from crosscompile import compile_for, fault

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.families import common_rules
from tritonmm.gpu import TRITON
from tritonmm.problem import KINDS, Epilogue, Problem

RIGHT = common_rules.portable_shared_bytes


def fewer_stages(forgotten: int):
    return lambda config, problem, gpu: RIGHT(config.changed(num_stages=config.num_stages - forgotten), problem, gpu)


def without_conversion(config: Config, problem: Problem, gpu: gpus.Gpu) -> int:
    """As if 8-bit B were not converted in shared memory."""
    return config.num_stages * config.step_bytes(problem) + common_rules.BARRIER_BYTES


def rounded_sums(config: Config, problem: Problem, gpu: gpus.Gpu) -> int:
    """As if sums were always rounded before they change layout."""
    tile = config.block_m * config.block_n * problem.out_element_bytes
    return max(config.num_stages * config.step_bytes(problem), tile) + common_rules.BARRIER_BYTES


def without_padding(config: Config, problem: Problem, gpu: gpus.Gpu) -> int:
    """As if nothing were padded on gfx950."""
    return RIGHT(config, problem, gpus.spec("mi300x"))


LARGE = Problem.dense(4096, 4096, 4096, layout="nt")
MUTANTS = {
    # rule: (shared_bytes, gpu, problem, config)
    "forgets a stage": (fewer_stages(1), "h200", LARGE, Config("tile", 64, 64, 64, 3, 4)),
    "forgets two stages": (fewer_stages(2), "rtx3090", LARGE, Config("tile", 64, 64, 64, 4, 4)),
    "forgets converted weights": (
        without_conversion, "h200", Problem.dense(4096, 4096, 4096, layout="nt", **KINDS["bf16-fp8-row"]),
        Config("tile", 64, 64, 64, 3, 4),
    ),
    "rounds sums first": (
        rounded_sums, "b200", Problem.dense(1001, 1001, 1001, epilogue=Epilogue(c=True)),
        Config("tile", 64, 32, 16, 1, 8),
    ),
    "forgets padding": (without_padding, "mi355x", LARGE, Config("tile", 128, 128, 64, 4, 8)),
}  # fmt: skip
if TRITON.startswith("3.6."):  # it pads nothing on gfx950
    del MUTANTS["forgets padding"]


WAIT = "griddepcontrol.wait;"
STARTS = {
    # start: (what stands for the wait, what the gate says)
    "does not wait": ("", "does not wait for the previous grid"),
    "reads before it waits": (f"ld.global.b32 %r1, [%rd1]; {WAIT}", "ld.global.b32 before"),
    "copies before it waits": (
        f"cp.async.cg.shared.global [%r1], [%rd1], 16; {WAIT}", "cp.async.cg.shared.global before",
    ),
    "lets the next grid start first": (
        f"griddepcontrol.launch_dependents; {WAIT}", "griddepcontrol.launch_dependents; before",
    ),
}  # fmt: skip


def wrong_starts() -> int:
    """How many of `STARTS` the gate does not find."""
    gpu, config = gpus.spec("h200"), Config("tile", 64, 64, 64, 3, 4)
    compiled = compile_for(gpu, LARGE, config)
    survived = 0
    for start, (mutant, said) in STARTS.items():
        found = fault(replace(compiled, assembly=compiled.assembly.replace(WAIT, mutant)), config, LARGE, gpu)
        survived += said not in found
        print(f"{start}: {found or 'nothing wrong'}", flush=True)
    return survived


def main() -> int:
    with tempfile.TemporaryDirectory() as os.environ["TRITON_CACHE_DIR"]:  # a cached kernel has no log of ptxas
        survived = wrong_starts()
        for rule, (mutant, name, problem, config) in MUTANTS.items():
            gpu, family = gpus.spec(name), families.family("tile")
            compiled = compile_for(gpu, problem, config)
            right = fault(compiled, config, problem, gpu)
            family.shared_bytes = mutant
            found = fault(compiled, config, problem, gpu)
            family.shared_bytes = RIGHT
            survived += bool(right) or "are counted" not in found
            print(f"{rule}: {found or 'nothing wrong'}; the rule as it is: {right or 'nothing wrong'}", flush=True)
    return survived


if __name__ == "__main__":
    sys.exit(main())
