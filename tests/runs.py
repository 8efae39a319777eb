"""Runs of the command in processes of their own."""

import subprocess
from pathlib import Path


class Runs:
    """command: its words. env: the environment of each. seconds: how long one may take."""

    def __init__(self, command: list[str | Path], env: dict[str, str], seconds: float):
        self.command, self.env, self.seconds = command, env, seconds

    def start(self, *options: str, **env: str) -> subprocess.Popen:
        """Starts the command in a session of its own, with more options and variables."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*self.command, *options], env=self.env | env, start_new_session=True, **pipes)

    def finish(self, process: subprocess.Popen) -> tuple[int, str, str]:
        """Its exit status and what it wrote, to stdout and to stderr."""
        out, err = process.communicate(timeout=self.seconds)
        return process.returncode, out, err
