"""What goes wrong in trials, on purpose: for children, workers and tuners of the tests.

A fault is named by a config's number of stages; see `Faulty`.
"""

import ctypes
import json
import os
import signal
import time
from dataclasses import replace

HANGS, CRASHES, RAISES, LOSES_GPU, WRONG, KILLS_WORKER = range(11, 17)


def log(line: str) -> None:
    """Adds a line to the file that the tests look into; whole, whoever else writes."""
    fd = os.open(os.environ["FAULTS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{line} {os.getpid()}\n".encode())
    os.close(fd)


def spin(seconds: float) -> None:
    """Holds the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class Echo:
    def __init__(self, greeting: str = ""):
        self.greeting = greeting
        self.asked = 0

    def __call__(self, request: dict) -> dict:
        self.asked += 1
        match request.get("do"):
            case "spin":
                spin(request["seconds"])
            case "sleep":
                time.sleep(request["seconds"])
            case "abort":
                print("about to abort", flush=True)
                os.abort()
            case "exit":
                os._exit(3)
            case "raise":
                raise ValueError("no\n such thing")
        return {"pid": os.getpid(), "asked": self.asked, "greeting": self.greeting, "retire": request.get("retire")}


def unimportable():
    raise ImportError("not here")


class Faulty:
    """A source whose trials do what the config's number of stages says; with 16 warps they take a while."""

    source, regime = "gpu", "quick"

    def __init__(self):
        from tritonmm import gpu
        from tritonmm.autotune.measuring.environment import Environment

        self.gpu = gpu.spec("h200")
        self.environment = Environment("Test GPU", "1", "2", "3", "4", "5", "6", "2026-11-20")
        self.lost = False

    def error_ratio(self, problem, config):
        log(f"{problem.m} {config.order.factors[0]} {self.regime}")
        _go_wrong(config)
        match config.num_stages:
            case stages if stages == LOSES_GPU:
                self.lost = True
                raise RuntimeError("an illegal memory access was encountered")
            case stages if stages == KILLS_WORKER:
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(1000)
        return 7.0 if config.num_stages == WRONG else 0.5

    def times(self, problem, config):
        from tritonmm.autotune.measuring.measure import Times

        if config.num_warps == 16:
            time.sleep(0.05)
        return Times(10.0 + config.order.factors[0], 25.0)

    def alive(self):
        return not self.lost


def unlike():
    """A `Faulty` that says something else of itself in each worker."""
    source = Faulty()
    source.environment = replace(source.environment, driver=os.environ["CUDA_VISIBLE_DEVICES"])
    return source


class FaultyGpu:
    """The GPU, and trials that go wrong on it in earnest."""

    def __new__(cls):
        import torch

        from tritonmm.autotune.measuring.sources import GpuSource

        class Source(GpuSource):
            def error_ratio(self, problem, config):
                match config.num_stages:
                    case stages if stages == HANGS:
                        torch.cuda._sleep(1 << 50)
                    case stages if stages == LOSES_GPU:
                        torch.zeros(1, device="cuda")[torch.full((1,), 1 << 40, device="cuda")] += 1
                        torch.cuda.synchronize()
                    case stages if stages == RAISES:
                        torch.empty(1 << 50, device="cuda")
                return super().error_ratio(problem, replace(config, num_stages=3))

        return Source()


def compile(problem, config, gpu):
    log(f"{problem.m} {config.order.factors[0]} compile")
    _go_wrong(config)


def _go_wrong(config) -> None:
    match config.num_stages:
        case stages if stages == HANGS:
            spin(1000)
        case stages if stages == CRASHES:
            print("LLVM ERROR: out of luck", flush=True)
            os.abort()
        case stages if stages == RAISES:
            raise RuntimeError("no such kernel")


def config(number: int, stages: int = 2, slow: bool = False, grouped: bool = False):
    """The config of that number: numbers order them, and their times. grouped: for a grouped GEMM."""
    from tritonmm.config import Config
    from tritonmm.orders import Grouped, SwizzleMerge

    order = Grouped(SwizzleMerge(number)) if grouped else SwizzleMerge(number)
    return Config("tile", 16, 16, 16, stages, 16 if slow else 4, persistent=grouped, order=order)


def main() -> None:
    """The `tritonmm` command, tuning `Faulty` on one worker with $FAULTS_CONFIGS slow configs a problem."""
    from tritonmm import cli, tuned
    from tritonmm.autotune.measuring import space
    from tritonmm.autotune.tuner import cluster
    from tritonmm.autotune.tuner.worker import Setup

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it

    def publish(winners, gpu):
        with open(os.environ["FAULTS_LOG"] + ".table", "w") as file:
            json.dump([(problem.m, config.order.factors[0], *times) for problem, config, *times in winners], file)
        return file.name

    count = int(os.environ["FAULTS_CONFIGS"])
    space.candidates = lambda problem, gpu: [
        config(number, slow=True, grouped=bool(problem.ragged)) for number in range(count, 0, -1)
    ]
    cli.tune._workers = lambda *_: (cluster.local(["0"], 0), Setup("faults:Faulty", ""))
    tuned.publish = publish
    cli.main()
