"""The user's file of fitted constants, which `tritonmm tune --quick` writes. It is never trusted when it is read.

    {"file": {"schema": 1, "gpu": {"name": "h100", "arch": "sm_90", "sms": 132}, "base": "0123456789abcdef",
              "date": "2026-11-26"},
     "gpu": "NVIDIA H100 80GB HBM3", "made": {...}, "shared": {...}, "l2": {...}, "families": {...}}

After "file" it is a record as those that ship, so the file itself can ship under the GPU's name. "base" is the digest
of the record that it was made from. Only a file made from the record that ships now is used: it has the same constants
and tiles, each within a factor of `MOST`.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonmm import user_files
from tritonmm.gpu import Gpu
from tritonmm.model.record import Record, parsed, spelled, values

SCHEMA = 1
"""Version of the format, and of what the constants mean. A change of the models' code that changes what a constant
means needs a new version; files of others are not read."""

MAX_BYTES = 2**20
MOST = 100.0
"""The largest ratio of a constant to the one that ships, in either direction."""

REMEDY = "`tritonmm tune --quick` makes a new one, and without the file the constants that ship are used"


class ConstantsError(ValueError):
    """A file that cannot be this GPU's constants. The message names the file, the reason and what to do."""


def path(gpu: Gpu) -> Path:
    """Path of the user's file for a GPU, beside the tuned table."""
    return user_files.path(gpu, "-constants")


def read(path: Path, gpu: Gpu, base: Record) -> Record | None:
    """The record in a file, None if there is no file. base: the record that ships for the GPU.

    Raises ConstantsError for a file that is another GPU's, made from another record or by another version, damaged or
    unreadable.
    """
    try:
        content = user_files.content(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConstantsError(f"{path}: cannot be read: {error}") from error
    try:
        found = user_files.parsed(content)
        if not isinstance(found, dict) or not isinstance(head := found.pop("file", None), dict):
            raise ValueError('it must be an object with "file"')
        _check_head(head, gpu, base)
        if not isinstance(found.get("gpu"), str) or not isinstance(found.get("made"), dict):
            raise ValueError('it must name its "gpu", and how it was "made"')
        _check_like(found, _values(base))
        record = parsed(found, f"fitted to this machine's GPU on {head['date']}, {path}", content)
    except (ValueError, RecursionError) as error:
        raise ConstantsError(f"{path}: {user_files.line(error)}; {REMEDY}") from None
    return record


def text(record: Record, gpu: Gpu, base: Record, date: str) -> str:
    """What the file of a record is. base: what it was made from; date: ISO 8601."""
    head = {"schema": SCHEMA, "gpu": user_files.named(gpu), "base": base.digest, "date": date}
    return spelled({"file": head, **values(record)})


def _check_head(head: Mapping[str, object], gpu: Gpu, base: Record) -> None:
    if head.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {head.get('schema')!r:.20}, and this tritonmm reads {SCHEMA}")
    if head.get("gpu") != user_files.named(gpu):
        raise ValueError(f"not fitted to {json.dumps(user_files.named(gpu))}")
    if head.get("base") != base.digest:
        raise ValueError("made from other constants than those that ship now")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(head.get("date")), re.ASCII):
        raise ValueError("it has no date")


def _check_like(found: Any, base: Any, where: str = "") -> None:
    """Raises ValueError, naming the place, unless `found` has the names of `base` and numbers near its."""
    if isinstance(base, dict):
        if not isinstance(found, dict) or set(found) != set(base):
            raise ValueError(f"{where or 'the record'} must have the names {', '.join(base)}"[:150])
        for name in base:
            if where or name not in ("gpu", "made"):
                _check_like(found[name], base[name], f"{where} {name}".strip())
    elif isinstance(base, list):
        if not isinstance(found, list) or len(found) != len(base):
            raise ValueError(f"{where} must have {len(base)} numbers")
        for one, other in zip(found, base, strict=True):
            _check_like(one, other, where)
    elif isinstance(base, int):  # counts are not fitted
        if type(found) is not int or found != base:
            raise ValueError(f"{where} must be {base}")
    elif type(found) not in (int, float) or not math.isfinite(found):
        raise ValueError(f"{where} must be a number")
    elif not (1 / MOST <= found / base <= MOST if base else found == 0):
        raise ValueError(f"{where} is {found:g}; it must be within a factor of {MOST:g} of {base:g}, which ships")


def _values(base: Record) -> dict[str, object]:
    """The values of a record as its file spells them."""
    return json.loads(spelled(values(base)))
