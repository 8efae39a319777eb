"""Which fitted constants a GPU has: the user's, those that ship for it, or those that ship for the GPU most like it.

`h200.json` in this folder is the H200's record. `python -m tritonmm.autotune.studies.fit_time --write` fits it and
names in it what it was fitted to. A GPU without a record has another's constants with its own peak rates, bandwidth and
SMs.
`tritonmm tune --quick` corrects them for this machine's GPU and writes the user's file, see `constants_file`.
"""

import functools
import warnings
from pathlib import Path

from tritonmm import gpu as gpus
from tritonmm import user_files
from tritonmm.gpu import Gpu
from tritonmm.model import constants_file
from tritonmm.model.constants_file import ConstantsError
from tritonmm.model.record import Record, parsed

FOLDER = Path(__file__).parent
DEFAULT = "h200"


def of(gpu: Gpu) -> Record:
    """The record that models read for a GPU: its `constants`, or else those of this installation.

    These are read once in a process. A user's file that cannot be used causes one warning.
    """
    return gpu.constants or _installed(gpu)


@functools.lru_cache(maxsize=64)
def _installed(gpu: Gpu) -> Record:
    base = shipped(gpu)
    try:
        return constants_file.read(constants_file.path(gpu), gpu, base) or base
    except ConstantsError as error:
        warnings.warn(f"tritonmm: fitted constants not used: {error}", stacklevel=2)
        return base


def shipped(gpu: Gpu) -> Record:
    """The record that ships for a GPU, or for one of its architecture, or the H200's."""
    name = _shipped_for(gpu.name, gpu.arch)
    is_its_own = name == gpu.name
    return read(FOLDER / f"{name}.json", f"the {name}'s, which ship{'' if is_its_own else '; none do for this GPU'}")


@functools.cache
def _shipped_for(name: str, arch: str) -> str:
    found = [path.stem for path in sorted(FOLDER.glob("*.json"))]
    alike = [each for each in (DEFAULT, *found) if gpus.spec(each).arch == arch]
    return name if name in found else next(iter(alike), DEFAULT)


@functools.lru_cache(maxsize=16)
def read(path: Path, source: str = "") -> Record:
    """The record in a file that ships. Raises ValueError for a file that is none. source: as in `Record`."""
    content = path.read_bytes()
    try:
        return parsed(user_files.parsed(content), source, content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
