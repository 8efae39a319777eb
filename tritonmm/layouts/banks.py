"""Bank conflicts: how many passes shared memory needs for one instruction of a warp.

Shared memory has 32 banks; byte address a lies in bank a // 4 % 32. An instruction is served in phases. A phase is a
group of threads that access 128 bytes together:

    4 bytes a thread (or less)    1 phase  of 32 threads
    8                             2 phases of 16
    16                            4 phases of 8

In one pass, each bank serves one 4-byte word, to all threads of the phase that want it. A phase needs as many passes
("ways") as the most distinct words that it wants from one bank. Threads of different phases never conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BANKS = 32
BANK_BYTES = 4
WARP = 32
ACCESS_BYTES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The passes that each phase of one instruction needs. 1 is free of conflicts."""

    ways: tuple[int, ...]

    @property
    def worst(self) -> int:
        """The most passes of any phase."""
        return max(self.ways)

    @property
    def extra(self) -> int:
        """Passes beyond one per phase, as the counter l1tex__data_bank_conflicts_pipe_lsu_mem_shared counts them."""
        return sum(self.ways) - len(self.ways)

    def __str__(self) -> str:
        ways = sorted(set(self.ways), reverse=True)
        phases = f"{len(self.ways)} phase{'s' if len(self.ways) > 1 else ''}"
        return f"{phases}, {'free of conflicts' if ways == [1] else '/'.join(map(str, ways)) + '-way'}"


def phase_threads(access_bytes: int) -> int:
    """Threads of a phase: 32, 16 or 8. Raises ValueError unless `access_bytes` is 1, 2, 4, 8 or 16."""
    if access_bytes not in ACCESS_BYTES:
        raise ValueError(f"bank_conflicts: access_bytes is {access_bytes!r}; it must be 1, 2, 4, 8 or 16")
    return min(WARP, BANKS * BANK_BYTES // access_bytes)


def bank_conflicts(addresses: Sequence[int] | np.ndarray, access_bytes: int) -> Conflicts:
    """The conflicts of one instruction in which thread i accesses `access_bytes` bytes at byte address addresses[i].

    addresses: 1 to 32 integers, each a multiple of `access_bytes`. Reads and writes conflict in the same way. Raises
        ValueError for other addresses.

    >>> str(bank_conflicts([256 * i for i in range(32)], 4))
    '1 phase, 32-way'
    """
    threads = phase_threads(access_bytes)
    addresses = np.asarray(addresses)
    if addresses.ndim != 1 or not 1 <= len(addresses) <= WARP or addresses.dtype.kind not in "iu":
        raise ValueError(f"bank_conflicts: an instruction has 1 to 32 addresses, integers; got {addresses!r}")
    if (addresses % access_bytes).any():
        odd = int(addresses[addresses % access_bytes != 0][0])
        raise ValueError(f"bank_conflicts: address {odd} is not a multiple of the {access_bytes} bytes accessed")
    return Conflicts(tuple(_ways(addresses[i : i + threads], access_bytes) for i in range(0, len(addresses), threads)))


def _ways(addresses: np.ndarray, access_bytes: int) -> int:
    spans = np.arange(0, max(access_bytes, BANK_BYTES), BANK_BYTES)
    words = np.unique((addresses[:, None] + spans[None, :]) // BANK_BYTES)
    return int(np.bincount(words % BANKS).max())
