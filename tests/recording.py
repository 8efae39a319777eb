"""Triton's NVIDIA driver without a GPU: kernels are compiled, and the calls of its C launcher are written down."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.compiler.compiler import LazyDict
from triton.knobs import HookChain
from triton.runtime import driver

DEVICE = torch.device("cuda", 99)
"""A device of which no other test has compiled a kernel."""

FLAT = triton.__version__.startswith("3.6.")


@dataclass(frozen=True)
class Call:
    """A call of the launcher: tensors as addresses, and hooks that would do nothing as None."""

    own: tuple
    arguments: tuple

    @classmethod
    def of(cls, own: tuple, arguments: tuple) -> "Call":
        return cls(_plain(own), _plain(arguments))


@dataclass
class Recorder:
    """The driver: `calls` of the launcher, and how many tensor maps it `encoded`."""

    device: int = DEVICE.index
    stream: int = 0
    calls: list[Call] = field(default_factory=list)
    encoded: int = 0
    loaded: int = 0

    def __post_init__(self):
        self.launcher_cls = nvidia.CudaLauncher
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232_448},
            load_binary=self._load,
            unload_module=lambda module: None,
            launch=self.launch,
            build_signature_metadata=tuple,
            fill_tma_descriptor=self._encode,
            fill_tma_descriptor_tiled=self._encode,
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return self.stream

    def launch(self, *found) -> None:
        own, arguments = (found[:13], found[13:]) if FLAT else (found[:15], found[15])
        for hook in filter(callable, own):
            hook(None)
        self.calls.append(Call.of(own, arguments))

    def _load(self, *_) -> tuple:
        self.loaded += 1
        return self.loaded, 16 * self.loaded, 0, 0, 1024  # module, function, registers, spills, threads

    def _encode(self, *fields) -> tuple:
        self.encoded += 1
        return "map", *(tuple(x) if isinstance(x, list) else x for x in fields)


RECORDER = Recorder()
"""The only one: what Triton has compiled keeps its launcher."""


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Triton launches on the recorder, which starts afresh, and torch knows of no other device."""
    recorder = RECORDER
    recorder.device, recorder.stream, recorder.encoded = DEVICE.index, 0, 0
    recorder.calls.clear()

    @contextlib.contextmanager
    def current(device):
        before, recorder.device = recorder.device, device
        yield
        recorder.device = before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", recorder)
        patch.setattr(torch._C, "_cuda_getDevice", recorder.get_current_device, raising=False)
        patch.setattr(torch.cuda, "device", current)
        if FLAT:
            patch.setattr(nvidia, "library_dirs", list)
            patch.setattr(nvidia, "compile_module_from_src", lambda **_: SimpleNamespace(launch=recorder.launch))
        else:
            patch.setattr(nvidia, "PyKernelArg", lambda nested_tuple, type: (type, nested_tuple))
        yield recorder
        _disown()


def _disown() -> None:
    """Triton 3.9 unloads the code of a kernel that is gone, unless another process loaded it; none was loaded here."""
    from tritonmm.families.hopper import kernel as hopper
    from tritonmm.families.persistent import kernel as persistent
    from tritonmm.families.tile import kernel as tile

    for jit in (tile.tile_kernel, persistent.persistent_kernel, hopper.gemm):
        if DEVICE.index in jit.device_caches:
            for kernel in jit.device_caches[DEVICE.index][0].values():
                kernel._module_pid = None


def _plain(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return tuple(map(_plain, found))
    if isinstance(found, torch.Tensor):
        return found.data_ptr()
    return None if isinstance(found, (HookChain, LazyDict)) else found
