"""Which spec a GPU's name, as drivers and results files have it, stands for."""

import os
import subprocess
import sys

import pytest

from tritonmm import gpu as gpus

NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100",
    "A100-PCIE-40GB": "a100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 NVL": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "NVIDIA L40S": "l40s",
    "NVIDIA B300 SXM6 AC": "b300",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI355X": "mi355x",
    "AMD Instinct MI355X OAM": "mi355x",
    "h200": "h200",
    "NVIDIA RTX A1000": None,
    "NVIDIA RTX A1000 Laptop GPU": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA GB200": None,
    "NVIDIA A10": None,
    "NVIDIA A10G": None,
    "NVIDIA L40": None,
    "NVIDIA L4": None,
    "NVIDIA GB300": None,
    "NVIDIA H20": None,
    "NVIDIA GeForce RTX 4090D": None,
    "NVIDIA GeForce RTX 5090 D": None,
    "NVIDIA GeForce RTX 3090 Ti": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "AMD Instinct MI350X": None,
    "AMD Instinct MI300A": None,
    "": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_known_by_whole_words(name):
    found = gpus.named(name)
    assert (found and found.name) == NAMES[name]


@pytest.mark.parametrize(
    ("name", "capability", "known"),
    [("NVIDIA RTX A1000", (8, 6), "nvidiartxa1000"), ("NVIDIA GH200 480GB", (9, 0), "nvidiagh200480gb"),
     ("NVIDIA H200", (9, 0), "h200")],
)  # fmt: skip
def test_a_device_is_called_by_its_spec_only_if_it_is_one(name, capability, known, monkeypatch):
    class Properties:
        major, minor = capability
        multi_processor_count, total_memory = 20, 8 * 2**30

    Properties.name = name
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Properties)
    found = gpus.of_device.__wrapped__(0)
    assert (found.name, found.verified, found.memory_bytes) == (known, known == "h200", 8 * 2**30)


LIMITS = {
    # KiB of shared memory of one CTA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability";
    # AMD's LDS of a compute unit
    "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99,
    "gfx942": 64, "gfx950": 160,
}  # fmt: skip


@pytest.mark.parametrize("name", gpus.names())
def test_specs_are_complete_and_have_their_architectures_shared_memory(name):
    gpu = gpus.spec(name)
    assert gpu.shared_bytes == LIMITS[gpu.arch] * 1024
    assert set(gpu.peak) == {"bf16", "fp16", "tf32", "fp32", "fp64", "int8", "fp8"}
    assert gpu.peak["fp64"] <= gpu.peak["fp32"] <= gpu.peak["tf32"] <= gpu.peak["fp16"] <= gpu.peak["fp8"]
    assert 10 < gpu.sms < 400
    assert gpu.bandwidth < 1e13 < gpu.memory_bytes * 1e3


def test_every_architecture_has_a_spec():
    assert {gpus.spec(name).arch for name in gpus.names()} == set(LIMITS)


@pytest.mark.parametrize("capability", [(8, 7), (12, 1)])
def test_an_unlisted_architecture_has_the_rates_of_its_generation(capability, monkeypatch):
    class Properties:
        name = "NVIDIA GB10"
        major, minor = capability
        multi_processor_count, total_memory, shared_memory_per_block_optin = 48, 8 * 2**30, 101_376

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Properties)
    found = gpus.of_device.__wrapped__(0)
    assert found.arch == f"sm_{capability[0]}{capability[1]}"
    assert found.shared_bytes == 101_376
    assert found.peak == gpus.spec({8: "a100", 12: "rtx5090"}[capability[0]]).peak


@pytest.mark.parametrize("name", ["rtx3090", "rtx4090", "l40s", "rtx5090"])
def test_gpus_for_graphics_have_two_fp64_units_for_128_of_fp32(name):
    peak = gpus.spec(name).peak
    assert peak["fp64"] == pytest.approx(peak["fp32"] / 64, rel=0.03)


def test_triton_is_the_one_that_would_be_imported(tmp_path):
    """Another one before the installed package, without metadata of its own, as a build from source may be."""
    import triton

    assert gpus.TRITON == triton.__version__
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("'''Not this one.'''\n__version__ = '9.8.7'\nraise ImportError\n")
    code = "from tritonmm.gpu import TRITON; print(TRITON)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "9.8.7"
