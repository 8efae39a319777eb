"""A child process that answers requests one by one, and may be killed at any time.

A kernel that hangs cannot be interrupted, and a compiler that aborts ends its process. So both run in a child process.
If it hangs or dies, its parent keeps all connections and only starts another child.

Requests and answers are JSON on a separate socket, so the child's output does not disturb them. If the child dies, its
last line of output becomes part of the reason. The child ends with its parent, however the parent ends.
"""

import contextlib
import fcntl
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection

START_SECONDS = 300.0
"""Time limit for importing torch and creating a CUDA context, in seconds, on a busy machine."""


class HungError(Exception):
    """The child exceeded its time limit and was killed."""


class CrashedError(Exception):
    """The child died before it answered."""


class ChildProcess:
    """A child process that runs `target`. It is started by the first request.

    target: "module:function". The child calls it with `arguments`, which must be JSON values. Its result is called with
        each request, a dict, and returns the answer, a dict. An exception becomes the answer {"error": ...}. After an
        answer with "retire" the child is replaced.
    """

    def __init__(self, target: str, arguments: dict):
        # Started by path, with -P so that this folder is not on sys.path: the child imports only what it needs.
        self._command = [sys.executable, "-P", __file__, target, json.dumps(arguments)]
        self._process: subprocess.Popen | None = None

    def ask(self, request: dict, seconds: float) -> dict:
        """The answer to one request.

        Raises HungError after `seconds`, and CrashedError if the child dies. The next request starts a new child.
        """
        if self._process is None:
            self._start()
            self._wait(START_SECONDS, "starting")
        with contextlib.suppress(OSError):  # the child died after its last answer; `_wait` reports it
            self._talk.send_bytes(json.dumps(request).encode())
        answer = self._wait(seconds, "answering")
        if answer.get("retire"):
            self.close()
        return answer

    def close(self) -> None:
        """Kills the child, if there is one."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may delay its end
                self._process.wait(30)
            self._talk.close()
            self._life.close()
            self._printed.close()
            self._process = None

    def _start(self) -> None:
        talk, childs_talk = socket.socketpair()
        self._life, childs_life = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115
        with childs_talk, childs_life:
            fds = childs_talk.fileno(), childs_life.fileno()
            self._process = subprocess.Popen(
                [*self._command, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the parent handles Ctrl-C
            )
        self._talk = Connection(talk.detach())

    def _wait(self, seconds: float, doing: str) -> dict:
        try:
            if self._talk.poll(seconds):
                return json.loads(self._talk.recv_bytes())
        except (EOFError, OSError):
            raise CrashedError(self._death()) from None
        finally:
            if sys.exc_info()[0] is not None:
                self.close()
        self.close()
        raise HungError(f"killed after {seconds:g} s of {doing}")

    def _death(self) -> str:
        """How the child ended, and its last line of output."""
        assert self._process is not None, "the child was started before its answer is awaited"
        code = self._process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - 4096))
        lines = self._printed.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"{how}: {said[-1][:200]}" if said else how


def main(target: str, arguments: str, talk: str, life: str) -> None:
    """Runs in the child: answers requests until the parent is gone."""
    _die_with(int(life))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(int(talk))
    module, _, name = target.partition(":")
    answer_to = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    connection.send_bytes(b"{}")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = answer_to(request)
        except Exception as error:
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        connection.send_bytes(json.dumps(answer).encode())


def _die_with(life: int) -> None:
    """Has the kernel end this process when the other end of the socket is closed, whatever this process is doing.

    A thread that waits for it would need the GIL, which a hanging call may hold.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main(*sys.argv[1:])
