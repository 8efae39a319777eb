"""Importing tritonmm costs little: neither Triton is imported nor what commands and figures need, and no GPU wakes."""

import subprocess
import sys

HEAVY = {
    "triton", "rich", "click", "dask", "distributed", "pyarrow", "numba", "matplotlib", "pandas", "sqlite3",
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.utils.flop_counter",
}  # fmt: skip


def test_what_importing_does_not_import():
    code = (
        "import sys, torch; before = set(sys.modules); import tritonmm; print(*(set(sys.modules) - before));"
        "assert not torch.cuda.is_initialized()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "tritonmm.ops" in ran.stdout.split()
    assert not HEAVY & set(ran.stdout.split())


def test_names_that_are_functions_and_modules_are_both():
    code = (
        "import tritonmm, tritonmm.select; from tritonmm.select import choose; import tritonmm.explanation;"
        "print(tritonmm.select(64, 64, 64, gpu='h200') == choose(tritonmm.Problem.dense(64, 64, 64),"
        " tritonmm.gpu.spec('h200')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr
