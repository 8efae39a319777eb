"""What goes wrong in trials, on purpose: for children, workers and tuners of the tests.

A fault is named by a config's number of stages; see `Faulty`.
"""

import ctypes
import os
import time

HANGS, CRASHES, RAISES, LOSES_GPU, WRONG = 11, 12, 13, 14, 15


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
    """A source whose trials do what the config's number of stages says, and else take no time."""

    source, regime = "gpu", "quick"

    def __init__(self):
        from tritonmm import gpu
        from tritonmm.autotune.environment import Environment

        self.gpu = gpu.spec("h200")
        self.environment = Environment("Test GPU", "1", "2", "3", "4", "5", "6", "2026-11-20")
        self.lost = False

    def error_ratio(self, problem, config):
        log(f"{problem.m} {config.num_stages}")
        match config.num_stages:
            case stages if stages == HANGS:
                spin(1000)
            case stages if stages == CRASHES:
                print("LLVM ERROR: out of luck", flush=True)
                os.abort()
            case stages if stages == RAISES:
                raise RuntimeError("no such kernel")
            case stages if stages == LOSES_GPU:
                self.lost = True
                raise RuntimeError("an illegal memory access was encountered")
        return 7.0 if config.num_stages == WRONG else 0.5

    def times(self, problem, config):
        from tritonmm.autotune.measure import Times

        return Times(10.0 + config.order.factors[0], 25.0)

    def alive(self):
        return not self.lost
