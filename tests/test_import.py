"""Importing tritonmm costs little: it brings neither Triton nor what only commands and figures need, and no GPU wakes."""

import subprocess
import sys


def test_what_importing_does_not_import():
    code = (
        "import sys, torch; before = set(sys.modules); import tritonmm; new = set(sys.modules) - before;"
        "heavy = {'triton', 'rich', 'click', 'dask', 'numba', 'matplotlib', 'pandas', 'torch._dynamo', 'torch._inductor',"
        " 'torch.distributed.tensor', 'torch.utils.flop_counter', 'sqlite3'};"
        "print(sorted(heavy & new)); assert not torch.cuda.is_initialized()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")


def test_names_that_are_functions_and_modules_are_both():
    code = (
        "import tritonmm, tritonmm.select; from tritonmm.select import choose; import tritonmm.explanation;"
        "print(tritonmm.select(64, 64, 64, gpu='h200') == choose(tritonmm.Problem.dense(64, 64, 64),"
        " tritonmm.gpu.spec('h200')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr
