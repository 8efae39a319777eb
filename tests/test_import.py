"""Importing tritonmm costs little: neither Triton is imported nor what commands and figures need, and no GPU wakes.

Without torch, it costs nothing until a public name is touched.
"""

import importlib.util
import subprocess
import sys

import pytest

import tritonmm
from tritonmm import public

HEAVY = {
    "triton", "rich", "click", "dask", "distributed", "pyarrow", "numba", "matplotlib", "pandas", "sqlite3",
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.utils.flop_counter",
}  # fmt: skip


def test_what_importing_does_not_import():
    code = (
        "import sys, torch; before = set(sys.modules); import tritonmm; print(*(set(sys.modules) - before));"
        "assert not torch.cuda.is_initialized()"
    )
    ran = python(code)
    assert "tritonmm.torch_ops.dense" in ran.split()
    assert not HEAVY & set(ran.split())


def python(code: str) -> str:
    """What a fresh Python prints that runs `code` without a word on stderr."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_orders_layouts_and_commands_wait_for_no_torch():
    code = (
        "import sys, tritonmm, tritonmm.cli; from tritonmm import layouts; tritonmm.orders.parse('hilbert');"
        "print({'torch', 'triton'} & set(sys.modules))"
    )
    assert python(code) == "set()\n"


def test_torch_finds_the_operators_wherever_both_are_imported():
    assert python("import torch, tritonmm; print(torch.ops.tritonmm.product)") == "tritonmm.product\n"


@pytest.mark.parametrize(
    "first", ["", "import torch", "import tritonmm.selection", "import tritonmm.autotune.measuring.space"]
)
def test_the_public_names_are_all_that_is_listed_and_imported(first):
    code = (
        f"{first}\nimport tritonmm, tritonmm.public as public\n"
        "for name in public.__all__: assert getattr(tritonmm, name) is getattr(public, name), name\n"
        "before = {*globals(), 'before'}\n"
        "from tritonmm import *\n"
        "new = {*globals()} - before - {'name'}\n"
        "print(dir(tritonmm) == sorted(public.__all__), new == {*public.__all__} - before, tritonmm.problem)"
    )
    assert python(code).startswith("True True <module 'tritonmm.problem'")


@pytest.mark.parametrize("name", public.__all__)
def test_a_public_name_is_no_other_module(name):
    """`import tritonmm.NAME` binds a module of that name over what the package has under it."""
    spec = importlib.util.find_spec(f"tritonmm.{name}")
    assert spec is None or getattr(tritonmm, name) is importlib.import_module(f"tritonmm.{name}")


def test_what_is_no_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tritonmm' has no attribute 'matmull'"):
        tritonmm.matmull  # noqa: B018


def test_threads_that_touch_names_first_at_once():
    code = (
        "import threading, tritonmm\nfound = []\n"
        "threads = [threading.Thread(target=lambda: found.append(tritonmm.matmul)) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(len(found), len(set(found)))"
    )
    assert python(code) == "8 1\n"
