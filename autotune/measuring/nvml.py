"""The state of a GPU while it is measured: clock, temperature, power, and other processes.

NVML is called directly, because a reading then takes microseconds. Running `nvidia-smi` takes a tenth of a second and
holds locks of the driver.
"""

import ctypes
import os
from ctypes import byref, c_uint, c_ulonglong, c_void_p

import torch

_SM_CLOCK = 1
_GPU_SENSOR = 0
_INSUFFICIENT_SIZE = 7


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class Nvml:
    """Readings of one NVIDIA GPU. A reading that the library, the driver or the GPU does not provide is None, never an
    error.

    uuid: as the driver spells it, "GPU-...".
    library: NVML, or None if it is not installed.
    """

    def __init__(self, uuid: str, library: ctypes.CDLL | None):
        self._nvml = library
        self._handle = c_void_p()
        if library is not None and (
            self._call("nvmlInit_v2") != 0
            or self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(self._handle)) != 0
        ):
            self._nvml = None

    @classmethod
    def of_device(cls, device: torch.device) -> "Nvml":
        """The readings of a torch device."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            library = None
        return cls(f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}", library)

    def mhz(self) -> float | None:
        """SM clock in MHz."""
        return self._number("nvmlDeviceGetClockInfo", _SM_CLOCK)

    def celsius(self) -> float | None:
        """GPU temperature in degrees Celsius."""
        return self._number("nvmlDeviceGetTemperature", _GPU_SENSOR)

    def watts(self) -> float | None:
        """Power draw in watts, which the GPU averages over about a second."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def in_use(self) -> str:
        """In words, what else uses the GPU, or "". Call it before this process gives the GPU work."""
        found = []
        load = _Utilization()
        if self._call("nvmlDeviceGetUtilizationRates", byref(load)) == 0 and load.gpu:
            found.append(f"it is {load.gpu}% busy")
        others = [pid for pid in self._processes() if pid != os.getpid()]
        if others:
            found.append(f"other processes use it: {', '.join(map(str, others))}")
        return ", ".join(found)

    def _processes(self) -> list[int]:
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        count = c_uint(0)
        if self._call(name, byref(count), None) != _INSUFFICIENT_SIZE:
            return []
        count.value += 8  # more processes may start in between
        found = (_Process * count.value)()
        if self._call(name, byref(count), found) != 0:
            return []
        return [process.pid for process in found[: count.value]]

    def _number(self, name: str, *which: int) -> int | None:
        value = c_uint()
        return value.value if self._call(name, *which, byref(value)) == 0 else None

    def _call(self, name: str, *arguments) -> int:
        """NVML's status code, 0 for success; -1 if the library or the function is missing.

        The device handle is the first argument of every call once it is known.
        """
        function = getattr(self._nvml, name, None)
        if function is None:
            return -1
        if self._handle:
            arguments = self._handle, *arguments
        return function(*arguments)
