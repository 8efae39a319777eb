"""What goes wrong in trials, on purpose: for children, workers and tuners of the tests.

A fault is named by a config's number of stages; see `Faulty`.
"""

import ctypes
import os
import time

HANGS, CRASHES, RAISES, LOSES_GPU, WRONG = 11, 12, 13, 14, 15


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
