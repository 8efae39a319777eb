"""GPU models: the sizes and rates that legality rules and the time model need, with or without a GPU."""

import functools
import importlib.metadata
import importlib.util
import itertools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tritonmm.moduli import moduli_of

if TYPE_CHECKING:
    from tritonmm.model.record import Record


def _triton_version() -> str:
    """Version of the Triton that would be imported. Importing it would take longer than all of tritonmm.

    It is read from Triton's source: package metadata may belong to another Triton further down the path, or have
    another name, as in nightly builds of torch. Raises ModuleNotFoundError if there is no Triton.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'triton', which tritonmm needs", name="triton")
    source = Path(spec.origin).read_text(encoding="utf-8")
    found = re.search(r"""^__version__ = ['"]([^'"]+)""", source, re.MULTILINE)
    return found[1] if found else importlib.metadata.version("triton")


TRITON = _triton_version()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model. Frozen and hashable.

    name: short name, such as "h200".
    arch: "sm_90" and so on for NVIDIA, "gfx942" and so on for AMD.
    sms: streaming multiprocessors (compute units on AMD).
    l2_bytes: the whole L2.
    l2_partitions: parts of the L2; each part keeps its own copy of the lines that its SMs read.
    shared_bytes: the most shared memory one CTA can have.
    bandwidth: peak device-memory bandwidth in bytes/s.
    peak: dense FLOP/s from the vendor's datasheet, by dtype name, "tf32" and "fp8" included.
    memory_bytes: device memory, 0 if unknown.
    verified: whether the L2 and time models have been compared with counters of this GPU.
    dies: dies with an L2 of their own, to which programs are assigned round robin: program i runs on die i % dies.
        1 if all programs share the L2, or if it is not known which die runs which program.
    llc_bytes: the cache between the L2s of several dies and device memory, 0 if there is none.
    llc_bandwidth: its peak bandwidth in bytes/s.
    constants: what models read for it instead of the fitted constants of this installation, see `model.constants`.
    """

    name: str
    arch: str
    sms: int
    l2_bytes: int
    l2_partitions: int
    shared_bytes: int
    bandwidth: float
    peak: dict[str, float] = field(hash=False)
    memory_bytes: int = field(default=0, compare=False)
    verified: bool = False
    dies: int = 1
    llc_bytes: int = 0
    llc_bandwidth: float = 0.0
    constants: "Record | None" = field(default=None, repr=False)

    def rate(self, dtype: str, precision: str = "ieee") -> float:
        """Peak dense FLOP/s for operands of `dtype` multiplied with `precision`, both as in `Problem`.

        "tf32x3" and "bf16x3" multiply three times, so they have a third of the rate of one multiplication, and "ozaki"
        multiplies int8 as often as it has moduli.
        """
        if moduli := moduli_of(dtype, precision):
            return self.peak["int8"] / moduli
        if precision.endswith("x3"):
            return self.peak[precision.removesuffix("x3")] / 3
        return self.peak["fp8" if dtype.startswith("fp8") else "tf32" if precision == "tf32" else dtype]

    @property
    def is_nvidia(self) -> bool:
        """True for NVIDIA GPUs."""
        return self.arch.startswith("sm_")

    @property
    def capability(self) -> int:
        """Compute capability as Triton writes it: 90 for sm_90; 0 on AMD."""
        return int(self.arch.removeprefix("sm_")) if self.is_nvidia else 0


MIB = 1024 * 1024
GB = 10**9


def _peak(half: float, tf32: float, fp32: float, fp64: float, int8: float, fp8: float) -> dict[str, float]:
    """Rates in FLOP/s from TFLOP/s. GPUs without fp8 tensor cores multiply fp8 as fp16, at fp16's rate."""
    rates = {"bf16": half, "fp16": half, "tf32": tf32, "fp32": fp32, "fp64": fp64, "int8": int8, "fp8": fp8}
    return {name: rate * 1e12 for name, rate in rates.items()}


# NVIDIA's and AMD's datasheets; shared_bytes is the opt-in limit per CTA in the CUDA programming guide, or the LDS of a
# compute unit. GeForce GPUs multiply fp16 with fp32 sums at half of the rate with fp16 sums. A GPU of the same
# architecture that is not listed has the rates of the first that is. The B200 has two dies, but NVIDIA does not say
# which of them runs which CTA, and their L2 appears as one. The MI300X and the MI355X have 8, with 4 MiB of L2 each,
# and 256 MB of Infinity Cache behind them (AMD CDNA 3 and CDNA 4 white papers).
_SPECS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", "sm_80", 108, 40 * MIB, 2, 166_912, 2.04e12, _peak(312, 156, 19.5, 19.5, 624, 312), 80 * GB),
        Gpu("rtx3090", "sm_86", 82, 6 * MIB, 1, 101_376, 0.936e12, _peak(71, 35.6, 35.6, 0.56, 284, 71), 24 * GB),
        Gpu("rtx4090", "sm_89", 128, 72 * MIB, 1, 101_376, 1.01e12, _peak(165, 83, 83, 1.3, 661, 330), 24 * GB),
        Gpu("l40s", "sm_89", 142, 96 * MIB, 1, 101_376, 0.864e12, _peak(362, 183, 91.6, 1.4, 733, 733), 48 * GB),
        Gpu("h100", "sm_90", 132, 50 * MIB, 2, 232_448, 3.35e12, _peak(989, 495, 67, 67, 1979, 1979), 80 * GB, True),
        Gpu("h200", "sm_90", 132, 60 * MIB, 2, 232_448, 4.8e12, _peak(989, 495, 67, 67, 1979, 1979), 141 * GB, True),
        Gpu("b200", "sm_100", 148, 126 * MIB, 2, 232_448, 8.0e12, _peak(2250, 1120, 75, 37, 4500, 4500), 180 * GB),
        Gpu("b300", "sm_103", 148, 126 * MIB, 2, 232_448, 8.0e12, _peak(2250, 1120, 75, 1.25, 150, 4500), 288 * GB),
        Gpu("rtx5090", "sm_120", 170, 96 * MIB, 1, 101_376, 1.79e12, _peak(210, 105, 105, 1.6, 838, 419), 32 * GB),
        Gpu(
            "mi300x", "gfx942", 304, 32 * MIB, 8, 65_536, 5.3e12, _peak(1307, 654, 163, 163, 2615, 2615), 192 * GB,
            dies=8, llc_bytes=256 * MIB, llc_bandwidth=17.2e12,
        ),
        Gpu(
            "mi355x", "gfx950", 256, 32 * MIB, 8, 163_840, 8.0e12, _peak(2517, 157, 157, 79, 5033, 5033), 288 * GB,
            dies=8, llc_bytes=256 * MIB, llc_bandwidth=17.2e12,
        ),
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """The names that `spec` accepts."""
    return tuple(_SPECS)


def spec(name: str) -> Gpu:
    """The GPU model of that name, from its datasheet. Raises ValueError for an unknown name.

    >>> spec("h200").sms
    132
    """
    try:
        return _SPECS[name.lower()]
    except KeyError:
        raise ValueError(f"unknown GPU {name!r}; known are {', '.join(_SPECS)}") from None


OTHERS = {"ti", "super", "d", "laptop", "max"}
"""Words that make a model's name that of another: an RTX 3090 Ti is not an RTX 3090."""


def named(text: str) -> Gpu | None:
    """The GPU model that a device name contains, or None.

    text: a device name, such as "NVIDIA A100-SXM4-80GB". The model must be one whole word of it, or two: "GeForce RTX
        4090" is "rtx4090", but an RTX A1000 is not an A100, a GH200 is not an H200 and an RTX 5090 D not an RTX 5090.
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    if OTHERS & set(words):
        return None
    words += [first + second for first, second in itertools.pairwise(words)]
    return next((gpu for name, gpu in _SPECS.items() if name in words), None)


@functools.lru_cache(maxsize=64)
def of_device(index: int) -> Gpu:
    """The CUDA or ROCm device `index` of this machine. Sizes are read from the device; rates come from the nearest
    known model."""
    found = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        arch = found.gcnArchName.split(":")[0]
        shared = getattr(found, "shared_memory_per_block", 65_536)
    else:
        arch = f"sm_{found.major}{found.minor}"
        shared = getattr(found, "shared_memory_per_block_optin", 101_376)
    known = named(found.name)
    alike = [gpu for gpu in _SPECS.values() if gpu.arch == arch] or [
        gpu
        for gpu in _SPECS.values()
        if gpu.arch[:-1] == arch[:-1]  # of the same generation
    ]
    nearest = known or next(iter(alike), _SPECS["a100"])
    l2_bytes, dies = getattr(found, "L2_cache_size", nearest.l2_bytes), nearest.dies
    if dies > 1:  # ROCm says what one die has; a logical device may be some of a GPU's dies
        dies = max(1, dies * found.multi_processor_count // nearest.sms)
        l2_bytes = nearest.l2_bytes // nearest.dies * dies
    return replace(
        nearest,
        name=nearest.name if known else found.name.lower().replace(" ", ""),
        arch=arch,
        sms=found.multi_processor_count,
        l2_bytes=l2_bytes,
        l2_partitions=nearest.l2_partitions // nearest.dies * dies,
        shared_bytes=shared,
        verified=nearest.verified and known is not None,
        memory_bytes=found.total_memory,
        dies=dies,
    )


def default() -> Gpu:
    """The current device, or the H200's datasheet on a machine without a GPU."""
    return of_device(torch.cuda.current_device()) if torch.cuda.is_available() else _SPECS["h200"]
