"""The compile gate: every kernel, for every target, in processes of their own that do not interpret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compile_cases import FAMILIES

from tritonmm import families

GATE = Path(__file__).with_name("crosscompile.py")


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_compile_without_spills(family):
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, str(GATE), family], capture_output=True, text=True, env=env)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    *kernels, verdict = ran.stdout.splitlines()
    assert verdict.endswith(": 0 faults")
    assert [line.split()[0] for line in kernels] == [gpu.arch for gpu, *_ in FAMILIES[family]()]


def test_every_kernel_and_every_target_is_among_them():
    found = [case for cases in FAMILIES.values() for case in cases()]
    assert {gpu.arch for gpu, *_ in found} == {"sm_80", "sm_90", "sm_100", "gfx942"}
    assert {case[-1].kernel for case in found if len(case) == 3} == set(families.names())
    for kernel in ("tile", "skinny"):  # those of every target
        assert len({gpu.arch for gpu, *_, config in found if getattr(config, "kernel", "") == kernel}) == 4
