"""The compile gate: every kernel, for every target, in processes of their own that do not interpret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compile_cases import FAMILIES, share

from tritonmm import families
from tritonmm import gpu as gpus

GATE = Path(__file__).with_name("crosscompile.py")

PARTS = {"mixed-input": 4, "int4": 3, "hopper": 2, "chosen": 2, "grouped": 3, "experts": 3}
"""Families whose kernels are compiled by several processes, so that none takes more than about two minutes."""

PROCESSES = [(family, part) for family in FAMILIES for part in range(PARTS.get(family, 1))]


def compiling(script, *arguments, **environment):
    """The lines that a script prints, in a process that does not interpret; it must exit with 0."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | environment
    ran = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, env=env)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout.splitlines()


@pytest.mark.gate
@pytest.mark.long
@pytest.mark.parametrize(("family", "part"), PROCESSES)
def test_kernels_compile_without_spills(family, part):
    parts = PARTS.get(family, 1)
    *kernels, verdict = compiling(GATE, f"{family}:{part}/{parts}")
    assert verdict.endswith(": 0 faults")
    assert [line.split()[0] for line in kernels] == [gpu.arch for gpu, *_ in share(family, part, parts)]


def test_the_parts_of_a_family_are_all_of_it():
    for family, parts in PARTS.items():
        assert [case for part in range(parts) for case in share(family, part, parts)] == share(family)


def test_every_kernel_and_every_target_is_among_them():
    found = [case for family in FAMILIES for case in share(family)]
    every = {gpus.spec(name).arch for name in gpus.names()}
    assert {gpu.arch for gpu, *_ in found} == every
    assert {case[-1].kernel for case in found if len(case) == 3} == set(families.names())
    for kernel in ("tile", "skinny"):  # those of every target
        assert {gpu.arch for gpu, *_, config in found if getattr(config, "kernel", "") == kernel} == every


def test_epilogues_round_alike_whatever_the_default_of_fusion_is(tmp_path):
    """From Triton 3.10 on, a multiplication and an addition are not one fma by default."""
    script = GATE.with_name("epilogue_sequence.py")
    compiling(script, TRITON_CACHE_DIR=str(tmp_path), TRITON_DEFAULT_FP_FUSION="0")


@pytest.mark.gate
def test_rules_that_count_too_little_and_kernels_that_do_not_wait_are_found():
    compiling(GATE.with_name("mutant_rules.py"))
