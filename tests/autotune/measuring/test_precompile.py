"""What is compiled with no GPU is what a launch finds in the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def kernels(cache, how, **environment):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"} | environment
    script = Path(__file__).with_name("precompiled.py")
    done = subprocess.run([sys.executable, script, how], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.gate
def test_a_launch_compiles_nothing_again(tmp_path):
    assert kernels(tmp_path, "ahead", CUDA_VISIBLE_DEVICES="") == "17 kernels, 0 from the cache"
    assert kernels(tmp_path, "here") == "17 kernels, 17 from the cache"


@pytest.mark.gpu
def test_a_launch_on_the_gpu_compiles_nothing_again(tmp_path):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("compiled for sm_90")
    assert kernels(tmp_path, "ahead", CUDA_VISIBLE_DEVICES="") == "17 kernels, 0 from the cache"
    assert kernels(tmp_path, "launch") == "17 kernels, 17 from the cache"
