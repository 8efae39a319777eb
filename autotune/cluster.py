"""The Dask cluster that measures and compiles: one of this machine, or one that the user runs.

Measuring workers have the resource "gpu": one thread, and one GPU that no other worker sees. Compiling workers have the
resource "compile", as many as threads.
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster

_QUIET = {
    "logging": {"distributed": "critical", "distributed.nanny": "critical", "tornado": "critical"},
    # What a worker's death means for a trial is decided here, so Dask is to report the first.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
}


@contextlib.contextmanager
def local(gpus: Sequence[str], compilers: int) -> Iterator[Client]:
    """A cluster of this machine, on its loopback: a measuring worker for each of `gpus`, and so many compilers.

    Raises OSError where they cannot be started.
    """
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": Scheduler, "options": options}
    workers = {f"gpu-{name}": _worker(f"gpu-{name}", 1, {"gpu": 1}, name) for name in gpus}
    if compilers:
        workers["compile"] = _worker("compile", compilers, {"compile": compilers}, "")
    with dask.config.set(_QUIET), _uninterrupted():
        try:
            cluster = SpecCluster(workers=workers, scheduler=scheduler, silence_logs="CRITICAL")
        except RuntimeError as error:
            raise OSError(f"no workers could be started: {error}") from error
    with cluster, Client(cluster) as client:
        yield client


@contextlib.contextmanager
def remote(address: str) -> Iterator[Client]:
    """The user's cluster. Raises OSError where no scheduler answers."""
    with dask.config.set(_QUIET), Client(address, timeout="10s") as client:
        try:
            yield client
        finally:
            from tritonmm.autotune import worker

            with contextlib.suppress(Exception):  # workers that are gone have nothing to dismiss
                client.run(worker.dismiss)


def _worker(name: str, threads: int, resources: dict[str, int], gpu: str) -> dict:
    env = {"CUDA_VISIBLE_DEVICES": gpu, "DASK_LOGGING__DISTRIBUTED": "critical"}
    options = {
        "name": name, "host": "127.0.0.1", "nthreads": threads, "resources": resources, "memory_limit": 0,
        "dashboard": False, "dashboard_address": "127.0.0.1:0", "env": env, "silence_logs": 50,
    }  # fmt: skip
    return {"cls": Nanny, "options": options}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C, which is the coordinator's to handle."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
