"""The tests of launches that compile kernels, in one process of their own where all others interpret them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritonmm.plan import INTERPRETED

FILES = [str(Path(__file__).with_name(name)) for name in ("test_direct.py", "test_steps.py")]


@pytest.mark.long
@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled here: these tests run as they are")
def test_launches_in_a_process_that_compiles():
    env = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *FILES, "-m", "not gpu"]
    ran = subprocess.run(command, capture_output=True, text=True, env=env)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    verdict = ran.stdout.splitlines()[-1]
    assert " passed" in verdict
    assert "skipped" not in verdict
