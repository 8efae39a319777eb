"""Which spec a GPU's name, as drivers and results files have it, stands for."""

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
    "AMD Instinct MI300X": "mi300x",
    "h200": "h200",
    "NVIDIA RTX A1000": None,
    "NVIDIA RTX A1000 Laptop GPU": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA GB200": None,
    "NVIDIA A10": None,
    "NVIDIA A10G": None,
    "NVIDIA L40S": None,
    "NVIDIA H20": None,
    "NVIDIA GeForce RTX 4090D": None,
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
