"""The user's files about a GPU, such as its tuned table: where they are, and how they are read without trust.

They are in the folder TRITONMM_TABLES, by default in the user's data folder.
"""

import json
import os
import stat
from pathlib import Path

from tritonmm import gpu as gpus
from tritonmm.gpu import Gpu


def path(gpu: Gpu, kind: str = "") -> Path:
    """Path of the user's file of a GPU. kind: "" for the tuned table, or the end of the name of another file."""
    folder = os.environ.get("TRITONMM_TABLES")
    if not folder:
        import platformdirs

        folder = platformdirs.user_data_dir("tritonmm")
    return Path(folder) / name(gpu, kind)


def name(gpu: Gpu, kind: str = "") -> str:
    """File name of `path`. A GPU partition, or a variant with fewer SMs, has its own."""
    known = gpu.name in gpus.names() and gpus.spec(gpu.name).sms == gpu.sms
    safe = "".join(x if x.isascii() and (x.isalnum() or x in "_-") else "-" for x in gpu.name)
    return f"{safe}{'' if known else f'-{gpu.sms}sms'}{kind}.json"


def named(gpu: Gpu) -> dict[str, object]:
    """The GPU as a file names it: a file of another is not read."""
    return {"name": gpu.name, "arch": gpu.arch, "sms": gpu.sms}


def content(path: Path, most: int) -> bytes:
    """The bytes of a regular file. Raises OSError for anything else, and for more than `most` bytes."""
    # O_NONBLOCK, because opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a file")
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(f"more than {most} bytes")
    return found


def parsed(found: bytes) -> object:
    """The JSON value of a file. Raises ValueError or RecursionError for anything else, such as NaN or a name that
    occurs twice in an object."""
    return json.loads(found.decode(), object_pairs_hook=_once, parse_constant=_refuse)


def line(error: BaseException) -> str:
    """The message of an error as ASCII of at most 200 characters, whatever the file contains."""
    return ascii(str(error))[1:-1][:200]


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
