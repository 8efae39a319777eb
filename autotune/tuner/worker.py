"""What a worker of the tuner does, and the child that does it for it.

A worker is a Dask process that owns one child for each of its threads, see `child_process`: what hangs or dies is the
child, and the worker answers with the reason. Everything that a child is told or tells is JSON.
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

from tritonmm.autotune.tuner.child_process import CrashedError, Disposable, HungError


@dataclass(frozen=True, slots=True)
class Setup:
    """Where trials come from: names of "module:function", which children import.

    source: makes a `sources.Source`. compiler: compiles what (problem, config, gpu) launches; "" where nothing is.
    """

    source: str = "tritonmm.autotune.measuring.sources:GpuSource"
    compiler: str = "tritonmm.autotune.measuring.precompile:precompile"


LIFETIME = 2000
"""Requests after which a child is replaced: Triton keeps each kernel that it has compiled or loaded, a MB of text."""

_CHILDREN: dict[tuple[int, str, str], Disposable] = {}


def about(setup: Setup, seconds: float) -> dict:
    """What the source of this worker's child says about itself, or the status and message of its failure."""
    return _ask("Measuring", setup.source, {}, seconds)


def measure(setup: Setup, requests: Sequence[dict], seconds: float, topic: str, key: str) -> None:
    """Runs trials in this thread's child, each for at most `seconds`, and tells each answer, see `_tell`.

    request: problem and config as JSON, and a regime. An answer has the `seconds` it took, and the `trial`, as JSON, or
    the `status` and `message` of one that the child did not survive.
    """
    for place, request in enumerate(requests):
        begun = time.monotonic()
        with _alone():
            answer = _ask("Measuring", setup.source, request, seconds)
        _tell(topic, key, place, answer | {"seconds": time.monotonic() - begun})


def compile(setup: Setup, requests: Sequence[dict], seconds: float, topic: str, key: str) -> None:
    """Compiles in this thread's child. An answer has a `status` and a `message` where that failed.

    request: problem and config as JSON, and the fields of a `Gpu`.
    """
    for place, request in enumerate(requests):
        answer = _ask("Compiling", setup.compiler, request, seconds)
        if "error" in answer:
            answer = {"status": "failed", "message": answer["error"]}
        _tell(topic, key, place, answer)


def _tell(topic: str, key: str, place: int, answer: dict) -> None:
    """Sends the coordinator the answer to one request of the task `key`, at once."""
    from distributed import get_worker  # children need none of it

    get_worker().log_event(topic, (key, place, answer))


def _ask(target: str, named: str, request: dict, seconds: float) -> dict:
    key = threading.get_ident(), target, named
    child = _CHILDREN.get(key)
    if child is None:
        child = _CHILDREN[key] = Disposable(f"{__name__}:{target}", {"named": named})
    try:
        return child.ask(request, seconds)
    except HungError as error:
        return {"status": "hung", "message": str(error)}
    except CrashedError as error:
        return {"status": "crashed", "message": str(error)}


def dismiss() -> None:
    """Ends the children of this worker, and with them their hold on a GPU."""
    while _CHILDREN:
        _CHILDREN.popitem()[1].close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Meanwhile no other tuner of this user measures on the GPU that this worker sees."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # there is no place for locks
            lock = _lock()
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lock() -> int:
    """The descriptor of the lock of this worker's GPU. Raises OSError.

    Who can open a lock can hold it, and stall every tuner: it is in a folder that only this user can enter.
    """
    import platformdirs

    folder = os.path.join(platformdirs.user_cache_dir("tritonmm"), "locks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of this user alone", folder)
    # Homes may be shared between machines.
    named = re.sub(r"[^\w.-]", "-", f"{socket.gethostname()}-gpu-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}")
    return os.open(os.path.join(folder, f"{named}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class Measuring:
    """In the child: trials from one source, and what it says about itself."""

    def __init__(self, named: str):
        self.source = _load(named)()
        self.asked = 0

    def __call__(self, request: dict) -> dict:
        from tritonmm.autotune.tuner.sweep import run

        if not request:
            return self._about()
        problem, config = _asked(request)
        if self.source.regime != "none":  # as the model's is
            self.source.regime = request["regime"]
        trial = run(problem, config, self.source)
        self.asked += 1
        # What is left of the memory after running out of it is not worth knowing.
        retire = self.asked >= LIFETIME or (trial.status == "failed" and trial.message.startswith("OutOfMemoryError"))
        if trial.status == "failed" and not self.source.alive():
            trial, retire = replace(trial, status="crashed"), True
        return {"trial": trial.to_json(), "retire": retire}

    def _about(self) -> dict:
        source = self.source
        about = {"source": source.source, "regime": source.regime}
        return about | {"gpu": asdict(source.gpu), "environment": asdict(source.environment)}


class Compiling:
    """In the child: kernels into Triton's cache. The answer is empty."""

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
    importlib.import_module("tritonmm.public")  # torch with it: not on the first request's time
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)
