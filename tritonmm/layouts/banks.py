"""Bank conflicts: how often shared memory has to be asked for what one warp instruction wants.

Shared memory has 32 banks; byte address a lies in bank a // 4 % 32. It serves a phase at a time, the threads whose
accesses make 128 bytes:

    4 bytes a thread (or less)    1 phase  of 32 threads
    8                             2 phases of 16
    16                            4 phases of 8

In a phase each bank serves one word of 4 bytes, to all threads that want it. A phase takes as many ways, that is turns,
as its most wanted bank has different words to serve. Threads of different phases never conflict.
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
    """The ways of each phase of one instruction; 1 is free of conflicts."""

    ways: tuple[int, ...]

    @property
    def worst(self) -> int:
        return max(self.ways)

    @property
    def extra(self) -> int:
        """Turns beyond one a phase: what the counter l1tex__data_bank_conflicts_pipe_lsu_mem_shared counts."""
        return sum(self.ways) - len(self.ways)

    def __str__(self) -> str:
        ways = sorted(set(self.ways), reverse=True)
        phases = f"{len(self.ways)} phase{'s' if len(self.ways) > 1 else ''}"
        return f"{phases}, {'free of conflicts' if ways == [1] else '/'.join(map(str, ways)) + '-way'}"


def phase_threads(access_bytes: int) -> int:
    """Threads of a phase: 32, 16 or 8."""
    if access_bytes not in ACCESS_BYTES:
        raise ValueError(f"bank_conflicts: access_bytes is {access_bytes!r}; it must be 1, 2, 4, 8 or 16")
    return min(WARP, BANKS * BANK_BYTES // access_bytes)


def bank_conflicts(addresses: Sequence[int] | np.ndarray, access_bytes: int) -> Conflicts:
    """The conflicts of one instruction in which thread i accesses `access_bytes` at byte address addresses[i].

    At most 32 addresses, each a multiple of `access_bytes`; a read and a write are alike.
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
