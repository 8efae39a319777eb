"""Commands that tests run in processes of their own."""

import subprocess
from pathlib import Path


class Runs:
    """Runs of one command.

    command: the program and its arguments. env: the environment of each run. seconds: how long a run may take.
    """

    def __init__(self, command: list[str | Path], env: dict[str, str], seconds: float):
        self.command, self.env, self.seconds = command, env, seconds

    def start(self, *options: str, **env: str) -> subprocess.Popen:
        """Starts a run in a session of its own, with these options and variables as well."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*self.command, *options], env=self.env | env, start_new_session=True, **pipes)

    def finish(self, process: subprocess.Popen) -> tuple[int, str, str]:
        """The exit status of a run, and what it wrote to stdout and to stderr."""
        out, err = process.communicate(timeout=self.seconds)
        return process.returncode, out, err
