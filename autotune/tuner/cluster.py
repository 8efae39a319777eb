"""The Dask cluster that measures and compiles: one on this machine, or one that the user runs.

Measuring workers have the resource "gpu", one thread, and one GPU that no other worker sees. Compiling workers have as
many of the resource "compile" as threads.

Dask unpickles what it receives, so whoever can connect to a scheduler or worker can run code as its user, and every
user of a machine can connect to its loopback interface. Therefore the local cluster uses TLS with a new certificate,
and only its own processes have the key.
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.security import Security
from distributed.utils import silence_logging_cmgr

ANSWER_SECONDS = 10
"""Time limit for the user's scheduler to answer, at first and after a lost connection."""

_QUIET = {
    "logging": {"distributed": "critical", "distributed.nanny": "critical", "tornado": "critical"},
    # The engine decides what a worker's death means for a trial, so Dask must report the first.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
}


@contextlib.contextmanager
def local(gpus: Sequence[str], compilers: int) -> Iterator[Client]:
    """A cluster on this machine's loopback interface. Raises OSError if it cannot be started.

    gpus: for each measuring worker, its CUDA_VISIBLE_DEVICES.
    compilers: threads that compile.
    """
    security = Security.temporary()
    scheduler = {"cls": Scheduler, "options": {"port": 0, **_listening(security)}}
    workers = {f"gpu-{name}": _worker(f"gpu-{name}", 1, {"gpu": 1}, name, security) for name in gpus}
    if compilers:
        workers["compile"] = _worker("compile", compilers, {"compile": compilers}, "", security)
    with dask.config.set(_QUIET), _uninterrupted():
        try:
            cluster = SpecCluster(workers=workers, scheduler=scheduler, security=security, silence_logs="CRITICAL")
        except RuntimeError as error:
            raise OSError(f"no workers could be started: {error}") from error
    with cluster, Client(cluster) as client:
        yield client


@contextlib.contextmanager
def remote(address: str) -> Iterator[Client]:
    """The user's cluster. For a tls:// address, Dask's configuration names the certificates.

    Raises OSError if no scheduler answers.
    """
    with dask.config.set(_QUIET), silence_logging_cmgr("CRITICAL"), _connected(address) as client:
        try:
            yield client
        finally:
            from tritonmm.autotune.tuner import worker

            with contextlib.suppress(Exception):  # some workers may be gone
                client.run(worker.dismiss)


def _connected(address: str) -> Client:
    try:
        return Client(address, timeout=ANSWER_SECONDS)
    except TypeError:  # Dask raises it if certificates are missing
        named = "ca-file, client.cert and client.key under distributed.comm.tls"
        raise OSError(f"{address}: TLS needs certificates, which Dask's configuration names: {named}") from None


def _listening(security: Security) -> dict:
    """Options of a server of the local cluster: where and how it listens."""
    nowhere = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    return {"host": "127.0.0.1", "protocol": "tls://", "security": security, **nowhere}


def _worker(name: str, threads: int, resources: dict[str, int], gpu: str, security: Security) -> dict:
    env = {"CUDA_VISIBLE_DEVICES": gpu, "DASK_LOGGING__DISTRIBUTED": "critical"}
    options = {
        "name": name, "nthreads": threads, "resources": resources, "memory_limit": 0, "env": env, "silence_logs": 50,
        **_listening(security),
    }  # fmt: skip
    return {"cls": Nanny, "options": options}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C; only the coordinator handles it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
