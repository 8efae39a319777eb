"""The child process that `counters` runs under the profiler: each trial once with profiling on, then a marker.

It is called with two files: the trials, as `counters` writes them, and a log that gets a line for each event:

    begin INDEX            a trial is about to be compiled and run
    failed INDEX MESSAGE   it raised before profiling was on
    finished               all trials were begun, and none ended the process
"""

import faulthandler
import json
import sys
from pathlib import Path

import torch
import triton

from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.trial import problem_of
from tritonmm.config import Config
from tritonmm.launch import FUSION
from tritonmm.plan import plan_for
from tritonmm.problem import Problem


@triton.jit
def trial_marker():
    pass


def main(asked: Path, log: Path, device: torch.device) -> None:
    """Runs the trials. Any error while profiling is on ends the process, because the output would be of half a
    trial."""
    found = json.loads(asked.read_text())
    trial_marker[(1,)](num_warps=1, **FUSION)  # compiled before the profiler looks
    torch.cuda.synchronize()
    operands: dict[Problem, tuple[torch.Tensor, ...]] = {}
    with log.open("a", buffering=1, encoding="utf-8") as events:
        for index, (problem, config) in enumerate(found["trials"], found["first"]):
            # faulthandler's thread needs no GIL, so it ends the process even if the main thread hangs in a call.
            faulthandler.dump_traceback_later(found["seconds"], exit=True)
            events.write(f"begin {index}\n")
            problem, config = problem_of(problem), Config.from_json(config)
            try:
                if problem not in operands:
                    operands.clear()  # frees the memory before the next allocation
                    operands[problem] = space.operands(problem, device)
                    for x in operands[problem][:2]:
                        x.normal_()
                plan = plan_for(problem, config, device)
                keywords = space.keywords(problem, device)
                plan(*operands[problem], **keywords)  # compiles the kernels and allocates workspaces
                torch.cuda.synchronize()
            except Exception as error:
                torch.cuda.synchronize()  # raises and ends the process if the context is lost
                events.write(f"failed {index} {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}\n")
                continue
            torch.cuda.profiler.start()
            plan(*operands[problem], **keywords)
            trial_marker[(index + 1,)](num_warps=1, **FUSION)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        faulthandler.cancel_dump_traceback_later()
        events.write("finished\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]), torch.device("cuda", torch.cuda.current_device()))
