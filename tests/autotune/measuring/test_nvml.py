"""Readings of the nvml, from a stand-in of NVIDIA's library."""

import os

import pytest
import torch

from tritonmm.autotune.measuring.nvml import Nvml as Readings

HANDLE = 0x5EED


class Nvml:
    """Answers as the library does: a status, and the value written through the last argument."""

    def __init__(self, uuid="GPU-1", busy=0, pids=(), missing=()):
        self.uuid, self.busy, self.pids = uuid, busy, pids
        for name in missing:
            setattr(self, name, None)

    def nvmlInit_v2(self):  # noqa: N802, the library's name
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):  # noqa: N802
        handle._obj.value = HANDLE
        return 0 if uuid == self.uuid.encode() else 6

    def nvmlDeviceGetClockInfo(self, handle, which, value):  # noqa: N802
        return self._number(handle, value, {1: 1755}[which])

    def nvmlDeviceGetTemperature(self, handle, which, value):  # noqa: N802
        return self._number(handle, value, {0: 61}[which])

    def nvmlDeviceGetPowerUsage(self, handle, value):  # noqa: N802
        return self._number(handle, value, 698_500)

    def nvmlDeviceGetUtilizationRates(self, handle, load):  # noqa: N802
        load._obj.gpu = self.busy
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):  # noqa: N802
        room, count._obj.value = count._obj.value, len(self.pids)
        if room < len(self.pids):
            return 7
        for process, pid in zip(found or (), self.pids, strict=False):
            process.pid = pid
        return 0

    def _number(self, handle, value, number):
        assert handle.value == HANDLE
        value._obj.value = number
        return 0


def test_readings_are_in_their_units():
    nvml = Readings("GPU-1", Nvml())
    assert (nvml.mhz(), nvml.celsius(), nvml.watts()) == (1755, 61, 698.5)


@pytest.mark.parametrize(
    "nvml",
    [
        Readings("GPU-1", None),
        Readings("GPU-2", Nvml()),
        Readings("GPU-1", Nvml(missing=["nvmlInit_v2"])),
        Readings(
            "GPU-1",
            Nvml(
                missing=[
                    "nvmlDeviceGetClockInfo",
                    "nvmlDeviceGetTemperature",
                    "nvmlDeviceGetPowerUsage",
                    "nvmlDeviceGetUtilizationRates",
                    "nvmlDeviceGetComputeRunningProcesses_v3",
                ]
            ),
        ),
    ],
    ids=["no library", "another nvml", "no init", "no functions"],
)
def test_what_is_not_known_is_none_and_no_error(nvml):
    assert (nvml.mhz(), nvml.celsius(), nvml.watts(), nvml.in_use()) == (None, None, None, "")


@pytest.mark.parametrize(
    ("library", "says"),
    [
        (Nvml(), ""),
        (Nvml(pids=[os.getpid()]), ""),
        (Nvml(busy=93), "it is 93% busy"),
        (Nvml(pids=[3, os.getpid(), 5]), "other processes use it: 3, 5"),
        (Nvml(busy=2, pids=[4]), "it is 2% busy, other processes use it: 4"),
    ],
    ids=["idle", "ourselves", "busy", "others", "both"],
)
def test_others_on_the_card_are_named(library, says):
    assert Readings("GPU-1", library).in_use() == says


@pytest.mark.gpu
def test_this_machines_card_answers():
    nvml = Readings.of_device(torch.device("cuda", torch.cuda.current_device()))
    assert 0 < nvml.mhz() < 5000
    assert 0 < nvml.celsius() < 120
    assert 0 < nvml.watts() < 3000
