"""What a worker of the tuner does, and the child that does it for it.

A worker is a Dask process that owns one child for each of its threads, see `disposable`: what hangs or dies is the
child, and the worker answers with the reason. Everything that a child is told or tells is JSON.
"""

import importlib
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tritonmm.autotune.disposable import CrashedError, Disposable, HungError


@dataclass(frozen=True, slots=True)
class Setup:
    """Where trials come from: names of "module:function", which children import.

    source: makes a `sources.Source`. compiler: compiles what (problem, config, gpu) launches; "" where nothing is.
    """

    source: str = "tritonmm.autotune.sources:GpuSource"
    compiler: str = "tritonmm.autotune.precompile:precompile"


_CHILDREN: dict[tuple[int, str, str], Disposable] = {}


def about(setup: Setup, seconds: float) -> dict:
    """What the source of this worker's child says about itself, or the status and message of its failure."""
    return _ask("Measuring", setup.source, {}, seconds)


def measure(setup: Setup, requests: Sequence[dict], seconds: float) -> list[dict]:
    """Runs trials in this thread's child, each for at most `seconds`.

    request: problem and config as JSON, and a regime. Each answer has the `seconds` it took, and the `trial`, as JSON,
    or the `status` and `message` of one that the child did not survive.
    """
    answers = []
    for request in requests:
        begun = time.monotonic()
        answer = _ask("Measuring", setup.source, request, seconds)
        answers.append(answer | {"seconds": time.monotonic() - begun})
    return answers


def compile(setup: Setup, request: dict, seconds: float) -> dict:
    """Compiles in this thread's child. The answer has a `status` and a `message` where that failed.

    request: problem and config as JSON, and the fields of a `Gpu`.
    """
    answer = _ask("Compiling", setup.compiler, request, seconds)
    return {"status": "failed", "message": answer["error"]} if "error" in answer else answer


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


class Measuring:
    """In the child: trials from one source, and what it says about itself."""

    def __init__(self, named: str):
        self.source = _load(named)()

    def __call__(self, request: dict) -> dict:
        from tritonmm.autotune.sweep import run

        if not request:
            return self._about()
        problem, config = _asked(request)
        if self.source.regime != "none":  # as the model's is
            self.source.regime = request["regime"]
        trial = run(problem, config, self.source)
        # What is left of the memory after running out of it is not worth knowing.
        retire = trial.status == "failed" and trial.message.startswith("OutOfMemoryError")
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

    def __call__(self, request: dict) -> dict:
        from tritonmm.gpu import Gpu

        self.compile(*_asked(request), Gpu(**request["gpu"]))
        return {}


def _asked(request: dict):
    from tritonmm.autotune.trial import problem_from_json
    from tritonmm.config import Config

    return problem_from_json(request["problem"]), Config.from_json(request["config"])


def _load(named: str):
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)
