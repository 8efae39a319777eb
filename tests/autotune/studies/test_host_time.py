"""What a call costs the host: timed with a clock that counts calls, and refused where it is not what it says."""

import contextlib
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from tritonmm.autotune.measuring import results_file
from tritonmm.autotune.studies import host_time
from tritonmm.autotune.studies.host_time import Case, Host

CPU = torch.device("cpu")


class Fake:
    """A host on which a call takes torch 1 us and tritonmm 11, and a synchronisation a second."""

    def __init__(self, kernels=1):
        self.now = self.synchronized = self.queued = 0
        self.ours = False
        self.kernels = kernels
        self.policies = []
        self.cases = [Case("mm", lambda: self.call(False), lambda: self.call(True), torch.ones(2, 2).double())]
        self.host = Host(self.use, self.synchronize, lambda: self.now, self.launches)

    def call(self, direct):
        self.queued += 1
        assert self.queued <= host_time.QUEUE
        self.ours = direct or bool(self.policies)
        self.now += 11_000 if self.ours else 1_000
        return torch.ones(2, 2)

    @contextlib.contextmanager
    def use(self, policy):
        self.policies.append(policy)
        yield
        assert self.policies.pop() == "always"

    def synchronize(self):
        self.now += 10**9
        self.queued = 0
        self.synchronized += 1

    def launches(self, call):
        call()
        return self.kernels if self.ours else 0


def test_times_are_the_least_mean_of_calls_alone():
    fake = Fake()
    (row,) = host_time.measure(fake.cases, fake.host, calls=1200, repeats=3)
    assert (row.function, row.torch_us, row.direct_us, row.use_us, row.disabled_us) == ("mm", 1, 11, 11, 1)
    assert fake.synchronized == 4 * 3 * 4
    assert len(host_time.line(row)) == len(host_time.HEADER)


def test_the_least_of_the_means_counts(monkeypatch):
    fake, times = Fake(), iter([5, 9, 4, 7, 6, 8, 3, 2, 1, 4, 5, 6])
    monkeypatch.setattr(host_time, "mean_us", lambda *_: next(times))
    (row,) = host_time.measure(fake.cases, fake.host, calls=1, repeats=3)
    assert (row.torch_us, row.direct_us, row.use_us, row.disabled_us) == (4, 7, 1, 2)


def test_what_another_computes_is_refused():
    fake = Fake(kernels=0)
    with pytest.raises(RuntimeError, match="mm: tritonmm was to compute it"):
        list(host_time.measure(fake.cases, fake.host, calls=1, repeats=1))
    fake = Fake()
    with fake.use("always"), pytest.raises(RuntimeError, match="mm: torch was to compute it"):
        list(host_time.measure(fake.cases, fake.host, calls=1, repeats=1))


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_wrong_results_are_refused(wrong):
    fake = Fake()
    (case,) = fake.cases
    with pytest.raises(RuntimeError, match="mm: the result is wrong"):
        list(host_time.measure([case._replace(direct=lambda: torch.full((2, 2), wrong))], fake.host, 1, 1))


def test_the_cases_are_what_they_say(device):
    for case in host_time.cases(device, 16, torch.float32):
        for call in (case.torch, case.direct, case.direct):
            torch.testing.assert_close(call().double(), case.exact, rtol=1e-4, atol=1e-4, msg=case.name)


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(host_time.main, [])
    assert result.exit_code == 1
    assert "needs a GPU" in result.output


def test_the_command_prints_a_table_and_writes_the_file(tmp_path, monkeypatch):
    fake = Fake()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Fake")
    monkeypatch.setattr(host_time, "cases", lambda device: fake.cases)
    monkeypatch.setattr(host_time, "GPU", fake.host)
    path = tmp_path / "host.csv"
    result = CliRunner().invoke(host_time.main, ["--calls", "3", "--repeats", "2", "--csv", str(path)])
    assert result.exit_code == 0, result.output
    about, columns, rows = results_file.read(path)
    assert about["gpu"] == "NVIDIA Fake"
    assert about["cpu"]
    assert columns == ["function", "torch_us", "direct_us", "use_us", "disabled_us"]
    assert [(row["function"], float(row["direct_us"])) for row in rows] == [("mm", 11.0)]
    assert result.output.splitlines()[0] == host_time.HEADER


@pytest.mark.gpu
def test_on_a_gpu_in_a_process_of_its_own(tmp_path):
    """Of its own, since torch must be timed before tritonmm's kernels are registered."""
    path = tmp_path / "host.csv"
    command = [
        sys.executable,
        "-m",
        "tritonmm.autotune.studies.host_time",
        "--calls",
        "50",
        "--repeats",
        "2",
        "--csv",
        str(path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    _, _, rows = results_file.read(path)
    assert len(rows) == 8
    assert all(0 < float(row[name]) < 10_000 for row in rows for name in list(row)[1:])
