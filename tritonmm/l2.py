"""L2 traffic of a tile order: the bytes a product moves between device memory, L2 and the SMs.

The model. The programs that run at the same time form a *wave*, and walk along K in lockstep, one
step of block_k at a time. A program wants the row panel of A and the column panel of B of its
tile; in one step each distinct panel is fetched from device memory at most once, however many
programs want it. Whether it must be fetched at all is the question of an LRU cache: a slice of a
panel is still in L2 if the distinct bytes touched since its last use, those of both steps included,
fit the effective capacity. Finished tiles of C pass through L2 and take room there.

That makes three kinds of bytes:

* DRAM reads: the slices that the LRU lost, or never had;
* DRAM writes: C once. L2 writes back, so nothing of C is read;
* L2 reads: what the programs ask for, less what the two SMs of a TPC ask for together.

An LRU needs no list of slices here. All panels of a wave advance together, so the bytes between two
uses of a slice are sums over whole panels plus a part that is linear in the step: see `_missed`.

What it leaves out: programs of a wave drift apart; L2 is hashed and not a true LRU; the halves of
L2 exchange lines, which counters see as misses. Its constants are leads and not fits.

How far to trust it. DRAM reads of 16384 x 16384 x 4096 in bf16 (H200, 128 x 256 x 64 tiles,
persistent, swizzle-merge:f), by counters (2026-11-20) and by this model, in GB:

    f           1      4      8      16     22
    measured    9.1    4.7    2.7    2.1    2.15
    predicted   8.53   4.69   2.86   2.32   2.31

The halves of L2 each keep a copy of what their SMs read, so the effective capacity is the L2 divided
by its partitions, 30 MiB here. These five agree with anything up to 40 MiB, because next to nothing
survives a wave; with 45 MiB f = 16 and 22 would read 33% and 49% less than measured.
"""

import functools
from dataclasses import dataclass

import numpy as np

from tritonmm.config import Config, shared_bytes
from tritonmm.gpu import Gpu, spec
from tritonmm.problem import Problem

__all__ = ["Traffic", "concurrent", "of", "programs_per_sm", "traffic"]

# Share of the requests for one panel by the two SMs of a TPC that reach L2 as one. Read off one pair
# of counters: at 8192^3 (H200, 2026-11-20) factors 1 and 4 read the same from DRAM by this model but
# hit 67% and 59%, and the ratio of their misses, 0.33 : 0.41, is the ratio of their requests when all
# pairs merge. The same pair says that the counters see 1.57 misses where the model has one.
TPC_MERGED = 1.0

# Bytes of a partial sum: products are summed in fp32.
PARTIAL_BYTES = 4

# Registers a thread needs beside its accumulators: addresses, descriptors, the epilogue.
OTHER_REGISTERS = 40


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one product moves. `l2_read_bytes` is what the SMs read, from wherever it came."""

    dram_read_bytes: int
    dram_write_bytes: int
    l2_read_bytes: int

    @property
    def dram_bytes(self) -> int:
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def hit_rate(self) -> float:
        """The part of `l2_read_bytes` that L2 served without DRAM; 1.0 where nothing was read.

        Counters show less: a line that the other half of L2 holds counts as a miss there, and as
        no DRAM read. It ranks orders wrongly on its own; compare the DRAM bytes.
        """
        return 1 - self.dram_read_bytes / self.l2_read_bytes if self.l2_read_bytes else 1.0

    def __str__(self) -> str:
        read, write, l2 = (_gb(x) for x in (self.dram_read_bytes, self.dram_write_bytes, self.l2_read_bytes))
        return f"DRAM reads {read}, writes {write}; L2 reads {l2}, {self.hit_rate:.1%} hit"


def traffic(
    m: int,
    n: int,
    k: int,
    config: Config,
    *,
    gpu: str | Gpu = "h200",
    dtype: str = "bf16",
    layout: str = "nn",
    batch: int = 1,
) -> Traffic:
    """The traffic of `batch` products of m x k by k x n. gpu: a `Gpu` or a name that `gpu.spec` knows.

    Deterministic. Raises ValueError for what `Problem` or `gpu.spec` refuses, and for a `Table`
    order of another grid.
    """
    problem = Problem(m, n, k, batch=batch, dtype=dtype, layout=layout)
    return of(problem, config, gpu if isinstance(gpu, Gpu) else spec(gpu))


@functools.lru_cache(maxsize=4096)
def of(problem: Problem, config: Config, gpu: Gpu) -> Traffic:
    """The traffic of `problem` done as `config` says on `gpu`.

    With split_k every part of K is a pass over all tiles, and the partial sums are written and read
    once more: through L2 alone where all of them fit its capacity.
    """
    tiles_m, tiles_n = config.tiles(problem)
    if not tiles_m * tiles_n * problem.batch:
        return Traffic(0, 0, 0)
    passes = problem.batch * config.split_k  # what no two passes share: their panels
    rows = np.minimum(config.block_m, problem.m - config.block_m * np.arange(tiles_m))
    cols = np.minimum(config.block_n, problem.n - config.block_n * np.arange(tiles_n))
    m, n, part, wave, slot = _schedule(problem, config, gpu)

    # Panels are numbered: the row panels of A in every pass, then the column panels of B.
    a = part * tiles_m + m
    b = part * tiles_n + n + passes * tiles_m
    a_bytes, b_bytes = rows * problem.element_bytes, cols * problem.b_element_bytes
    row_bytes = np.concatenate([np.tile(a_bytes, passes), np.tile(b_bytes, passes)])
    k = problem.k if config.split_k == 1 else problem.k / config.split_k

    sum_bytes = PARTIAL_BYTES if config.split_k > 1 else problem.out_element_bytes
    written = np.bincount(wave, weights=rows[m] * cols[n] * sum_bytes)
    ends = np.minimum(config.block_k * np.arange(1, -(-k // config.block_k) + 1), k)
    capacity = gpu.l2_bytes / gpu.l2_partitions
    missed = _missed(_distinct(wave, a, b, len(row_bytes)), row_bytes, ends, written, capacity)

    # Programs 2j and 2j + 1 of a wave run on the two SMs of a TPC.
    asked = sum(row_bytes[panel].sum() - TPC_MERGED * _paired(wave, slot, panel, row_bytes) for panel in (a, b)) * k

    outputs = problem.batch * problem.m * problem.n
    partial = outputs * config.split_k * PARTIAL_BYTES if config.split_k > 1 else 0
    spilled = partial if partial > capacity else 0
    return Traffic(round(missed) + spilled, outputs * problem.out_element_bytes + spilled, round(asked) + partial)


def programs_per_sm(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that one SM holds: by shared memory, registers and warps, and one when persistent."""
    if config.persistent:
        return 1
    threads = config.num_warps * (32 if gpu.is_nvidia else 64)
    registers = config.block_m * config.block_n + threads * OTHER_REGISTERS
    file = 65_536 if gpu.is_nvidia else 131_072
    return max(1, min(gpu.shared_bytes // shared_bytes(config, problem), file // registers, 2048 // threads))


def concurrent(problem: Problem, config: Config, gpu: Gpu) -> int:
    """Programs that run at the same time: a wave, or the whole launch where that is less."""
    launched = config.order.launched(*config.tiles(problem)) * problem.batch * config.split_k
    return min(gpu.sms // config.ctas * programs_per_sm(problem, config, gpu), launched)


def _schedule(problem: Problem, config: Config, gpu: Gpu):
    """(m, n, pass, wave, slot) of every program that has a tile, as arrays.

    Overflow programs of SplitMerge read nothing and retire at once. In a plain launch the next
    program takes the slot, so the waves are those of the order without them. A persistent program
    goes on to its own next index: its j-th tile runs in wave j.
    """
    visit = config.order.visit(*config.tiles(problem))
    passes = problem.batch * config.split_k
    tile = np.tile(np.arange(len(visit)), passes)
    part = np.repeat(np.arange(passes), len(visit))
    real = visit[tile, 0] >= 0
    programs = concurrent(problem, config, gpu)
    if config.persistent:
        walks = np.zeros((-(-len(tile) // programs), programs), dtype=bool)
        walks.flat[: len(tile)] = real
        wave = (np.cumsum(walks, axis=0) - 1).ravel()[: len(tile)][real]
        slot = np.flatnonzero(real) % programs
    else:
        wave, slot = np.divmod(np.arange(np.count_nonzero(real)), programs)
    m, n = visit[tile[real]].astype(np.int64).T
    return m, n, part[real], wave, slot


def _distinct(wave, a, b, panels):
    """For every wave the distinct panels that it wants."""
    wanted = np.unique(np.concatenate([wave * panels + a, wave * panels + b]))
    wave, panel = np.divmod(wanted, panels)
    return np.split(panel, np.flatnonzero(np.diff(wave)) + 1)


def _paired(wave, slot, panel, row_bytes):
    """Bytes a unit of K of the panels that both SMs of a TPC want in the same wave."""
    slots = slot.max() + 1 + (slot.max() + 1) % 2
    grid = np.full((wave.max() + 1) * slots, -1)
    grid[wave * slots + slot] = panel
    even, odd = grid[::2], grid[1::2]
    return row_bytes[even[(even == odd) & (even >= 0)]].sum()


def _missed(waves, row_bytes, ends, written, capacity):
    """Bytes that an LRU of `capacity` must fetch for `waves`, an array of distinct panels each.

    A panel has row_bytes a unit of K; a step t covers K from ends[t - 1] to ends[t]; wave w writes
    written[w] bytes of C when it is done. For a panel of wave w last used by wave j, the bytes
    touched from step t of j to step t of w are, by panel:

        used after j, or by both j and w     all of K
        last used by j and not by w          from the start of t
        used by w and by neither j nor later to the end of t

    `live[j]` keeps the row bytes of the panels last used by wave j, so each is one sum.
    """
    if not len(ends):
        return 0
    k = ends[-1]
    starts = np.concatenate([[0], ends[:-1]])
    last = np.full(len(row_bytes), -1)
    live = np.zeros(len(waves))
    horizon = 0  # no wave before it can have left anything
    missed = 0
    for w, panels in enumerate(waves):
        size = row_bytes[panels]
        age = last[panels] - horizon
        kept = np.bincount(age[age >= 0], weights=size[age >= 0], minlength=w - horizon)
        seen = live[horizon:w]
        newer = seen[::-1].cumsum()[::-1] - seen
        older = size.sum() - kept[::-1].cumsum()[::-1]
        since = written[horizon:w][::-1].cumsum()[::-1]
        missed += size.sum() * k
        for j in np.flatnonzero(kept):
            touched = (newer[j] + kept[j]) * k + (seen[j] - kept[j]) * (k - starts) + older[j] * ends + since[j]
            missed -= kept[j] * (ends - starts)[touched <= capacity].sum()
        live[horizon:w] -= kept
        live[w] = size.sum()
        last[panels] = w
        while horizon <= w and live[horizon + 1 : w + 1].sum() * k + written[horizon : w + 1].sum() > capacity:
            horizon += 1
    return missed


def _gb(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
