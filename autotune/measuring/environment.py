"""What a measurement depends on besides the problem and the config."""

import dataclasses
import datetime
import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

import tritonmm
from tritonmm.autotune.measuring.code_digest import code_digest
from tritonmm.version import __version__


@dataclass(frozen=True, slots=True)
class Environment:
    """The GPU and the versions of everything that decides a time. Fields without an answer are empty.

    gpu: the device's full name, or the name of the spec that was modelled; driver and cuda: of the
    machine (ROCm's on AMD); commit: of the tritonmm checkout, followed by "+" and a digest where
    files differ from it; date: the day, in UTC; code: a digest of the sources that decide a time.
    """

    gpu: str
    driver: str
    cuda: str
    torch: str
    triton: str
    tritonmm: str
    commit: str
    date: str
    code: str = ""

    @classmethod
    def here(cls, gpu: str) -> "Environment":
        """This process's environment, for trials on the GPU of that name."""
        return cls(
            gpu=gpu,
            driver=_answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
            cuda=torch.version.cuda or getattr(torch.version, "hip", None) or "",
            torch=torch.__version__,
            triton=triton.__version__,
            tritonmm=__version__,
            commit=_commit(Path(tritonmm.__file__).resolve().parents[1]),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            code=code_digest(),
        )

    def fingerprint(self) -> str:
        """Equal for environments whose trials can stand for each other: all fields but the date and the commit.

        What a commit changes in a time, `code` sees; a change of the documentation costs no trial.
        """
        fields = dataclasses.asdict(self)
        del fields["date"], fields["commit"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def about(self) -> dict[str, str]:
        """The fields by name, as a results file begins with; "none" where there is no answer."""
        return {key: value or "none" for key, value in dataclasses.asdict(self).items()}

    def comments(self) -> list[str]:
        """A line `# key: value` a field."""
        return [f"# {key}: {value}" for key, value in self.about().items()]


def _commit(checkout: Path) -> str:
    """The checkout's commit, and a digest of what its code has changed since, or "" if it is none."""
    if named := os.environ.get("TRITONMM_COMMIT"):  # of a copy that was made without its history
        return named
    # A copy installed below some other project's repository must not take that project's commit.
    if not (checkout / ".git").exists():
        return ""
    commit = _answer("git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    changes = _answer("git", "-C", str(checkout), "diff", "HEAD", "--", "tritonmm", "autotune/**.py")
    return commit + ("+" + hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else "")


def _answer(*command: str) -> str:
    """What the command prints, or "" where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
