"""What a worker of the tuner does, and what its child process does for it.

A worker is a Dask process with one child process for each of its threads, see `child_process`. Only the child can hang
or die; the worker then answers with the reason. All requests and answers are JSON.
"""

import contextlib
import errno
import fcntl
import importlib
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tritonmm.autotune.tuner.child_process import ChildProcess, CrashedError, HungError


@dataclass(frozen=True, slots=True)
class Setup:
    """Functions that children import, as "module:function".

    source: makes a `sources.Source`.
    compiler: compiles the kernels of (problem, config, gpu) ahead; "" for no compilation ahead.
    """

    source: str = "tritonmm.autotune.measuring.sources:GpuSource"
    compiler: str = "tritonmm.autotune.measuring.precompile:precompile"


LIFETIME = 2000
"""Requests after which a child is replaced, because Triton keeps about a MB of text for each kernel that it compiles or
loads."""

_CHILDREN: dict[tuple[int, str, str], ChildProcess] = {}


def about(setup: Setup, seconds: float) -> dict:
    """The description that the source of this worker's child gives, or the status and message of its failure."""
    return _ask("Measuring", setup.source, {}, seconds)


def measure(setup: Setup, requests: Sequence[dict], seconds: float, topic: str, key: str) -> None:
    """Runs trials in this thread's child, each for at most `seconds`, and sends each answer, see `_tell`.

    requests: problem and config as JSON, and a regime. An answer has the `seconds` it took and the `trial` as JSON, or
        the `status` and `message` of a trial that the child did not survive.
    """
    for place, request in enumerate(requests):
        begun = time.monotonic()
        with _alone():
            answer = _ask("Measuring", setup.source, request, seconds)
        _tell(topic, key, place, answer | {"seconds": time.monotonic() - begun})


def compile(setup: Setup, requests: Sequence[dict], seconds: float, topic: str, key: str) -> None:
    """Compiles in this thread's child. An answer is empty, or has the `status` and `message` of a failure.

    requests: problem and config as JSON, and the fields of a `Gpu`.
    """
    for place, request in enumerate(requests):
        answer = _ask("Compiling", setup.compiler, request, seconds)
        if "error" in answer:
            answer = {"status": "failed", "message": answer["error"]}
        _tell(topic, key, place, answer)


def _tell(topic: str, key: str, place: int, answer: dict) -> None:
    """Sends the coordinator the answer to one request of the task `key` at once."""
    from distributed import get_worker  # imported here, because children do not need it

    get_worker().log_event(topic, (key, place, answer))


def _ask(target: str, named: str, request: dict, seconds: float) -> dict:
    key = threading.get_ident(), target, named
    child = _CHILDREN.get(key)
    if child is None:
        child = _CHILDREN[key] = ChildProcess(f"{__name__}:{target}", {"named": named})
    try:
        return child.ask(request, seconds)
    except HungError as error:
        return {"status": "hung", "message": str(error)}
    except CrashedError as error:
        return {"status": "crashed", "message": str(error)}


def dismiss() -> None:
    """Ends the children of this worker, which frees their GPU."""
    while _CHILDREN:
        _CHILDREN.popitem()[1].close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Inside, no other tuner of this user measures on this worker's GPU."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without a folder for locks, measure without one
            lock = _lock()
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock() -> int:
    """The descriptor of the lock file of this worker's GPU. Raises OSError.

    Whoever can open the lock can hold it and stall every tuner, so its folder must be accessible to this user only.
    """
    import platformdirs

    folder = os.path.join(platformdirs.user_cache_dir("tritonmm"), "locks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder that only this user can access", folder)
    # Home folders may be shared between machines, so the name has the host.
    named = re.sub(r"[^\w.-]", "-", f"{socket.gethostname()}-gpu-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}")
    return os.open(os.path.join(folder, f"{named}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class Measuring:
    """Runs in the child: trials from one source, and the source's description."""

    def __init__(self, named: str):
        self.source = _load(named)()
        self.asked = 0

    def __call__(self, request: dict) -> dict:
        from tritonmm.autotune.tuner.sweep import run

        if not request:
            return self._about()
        problem, config = _asked(request)
        if self.source.regime != "none":  # modelled times have no regime
            self.source.regime = request["regime"]
        trial = run(problem, config, self.source)
        self.asked += 1
        # After running out of memory the child is replaced, which frees everything that it held.
        retire = self.asked >= LIFETIME or (trial.status == "failed" and trial.message.startswith("OutOfMemoryError"))
        if trial.status == "failed" and not self.source.alive():
            trial, retire = replace(trial, status="crashed"), True
        return {"trial": trial.to_json(), "retire": retire}

    def _about(self) -> dict:
        source = self.source
        about = {"source": source.source, "regime": source.regime}
        return about | {"gpu": asdict(source.gpu), "environment": asdict(source.environment)}


class Compiling:
    """Runs in the child: compiles kernels into Triton's cache."""

    def __init__(self, named: str):
        self.compile = _load(named)
        self.asked = 0

    def __call__(self, request: dict) -> dict:
        from tritonmm.gpu import Gpu

        self.compile(*_asked(request), Gpu(**request["gpu"]))
        self.asked += 1
        return {"retire": self.asked >= LIFETIME}


def _asked(request: dict):
    from tritonmm.autotune.measuring.trial import problem_of
    from tritonmm.config import Config

    return problem_of(request["problem"]), Config.from_json(request["config"])


def _load(named: str):
    importlib.import_module("tritonmm.public")  # imports torch now, so that the first request does not pay for it
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)
