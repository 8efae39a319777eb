"""What a measurement depends on besides the problem and the config: the GPU and the versions of the software."""

import dataclasses
import datetime
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

import tritonmm
from tritonmm.autotune.measuring.code_digest import code_digest
from tritonmm.version import __version__


@dataclass(frozen=True, slots=True)
class Environment:
    """The GPU and the versions that decide a time. Unknown fields are "".

    gpu: the device's full name, or the name of the modelled GPU.
    driver, cuda: versions on this machine (ROCm's on AMD).
    commit: the commit of the tritonmm checkout, with "+" and a digest of the differences if files were changed.
    date: the day, in UTC.
    code: digest of the sources that decide a time, see `code_digest`.
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
        """The environment of this process, for trials on the GPU of that name."""
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
        """A digest of all fields except the date and the commit. Trials of environments with equal fingerprints are
        interchangeable.

        `code` covers what a commit changes in a time. So a change of the documentation does not invalidate trials.
        """
        fields = dataclasses.asdict(self)
        del fields["date"], fields["commit"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def about(self) -> dict[str, str]:
        """The fields by name, as the head of a results file has them; "none" for unknown fields."""
        return {key: value or "none" for key, value in dataclasses.asdict(self).items()}

    def comments(self) -> list[str]:
        """A line `# key: value` for each field."""
        return comments_of(self.about())


def comments_of(about: Mapping[str, str]) -> list[str]:
    """A line `# key: value` for each, as at the head of a results file."""
    return [f"# {key}: {value}" for key, value in about.items()]


def _commit(checkout: Path) -> str:
    """The checkout's commit and a digest of its uncommitted changes, or "" if it is no checkout."""
    if named := os.environ.get("TRITONMM_COMMIT"):  # set for a copy without its git history
        return named
    # A copy installed inside another project's repository must not report that project's commit.
    if not (checkout / ".git").exists():
        return ""
    commit = _answer("git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    changes = _answer("git", "-C", str(checkout), "diff", "HEAD", "--", "tritonmm", "autotune/**.py")
    return commit + ("+" + hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else "")


def _answer(*command: str) -> str:
    """Standard output of the command, or "" if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
