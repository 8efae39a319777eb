"""Split-K: the programs that share a tile each sum a part of its K steps; their partial sums are added in part order.

    workspace   | slot 0              | slot 1              | ...     uninitialised before a launch
                | worker 0 | worker 1 | worker 0 | worker 1 |         a worker's sums of the tile, `AREA` elements each
    flags       | tile 0              | tile 1              | ...     int32, one for each tile and worker
                | worker 0 | worker 1 | worker 0 | worker 1 |

    flag        | phase | count |       bit 31, bits 30 to 0

A worker is a warpgroup that owns part of the tile, or the whole program. Parts of equal size lie in the slots
`tile * splits + part`. Programs whose equal shares of K cut tiles anywhere have two slots each (`slot_of`).

A part stores its sums, then adds its weight to the flag with release semantics (`arrive`). The weights of a tile's
parts add up to 2**31: the part that begins the tile carries what the others lack. So only the last arrival wraps the
count to zero, and flips the phase. Between launches every count is zero and every phase has any value: flags need no
reset, and the next launch may use them for other tiles and another number of parts. There are two fixups:

    last arriver      The last part to arrive adds up all parts (`last_arriver_fixup`). Nobody waits.
    reduce-scatter    Every part waits for the phase to flip (`arrive_and_wait`), then adds up its own share of the tile
                      (`add_parts`). All programs must be resident: the launch is cooperative.

Both add the parts in the same order, whoever arrives last: results are bitwise reproducible. The loads bypass L1,
which may hold what an earlier tile left at the same addresses. Two parts have the same sum in either order. In
the mixed-input kernel a program of a reduce-scatter does not store its own share, and adds the others' to it; or a
program stores its part of several tiles and waits for nobody, and the programs with the other parts add it (`assist`).

Plain Triton and Gluon kernels call the same functions: they only use operations that take layouts from their operands.
"""

import triton
import triton.language as tl

COUNT = tl.constexpr(0x7FFFFFFF)
"""The bits of a flag that count arrivals."""


@triton.jit
def slot_of(program, begins, SLOTS: tl.constexpr):
    """The slot of a program's part of a tile. With two SLOTS, the second is for the tile whose K the part begins."""
    return 2 * program + tl.cast(begins, tl.int32) if SLOTS == 2 else program


@triton.jit
def slot_sums(sums, slot, STRIDE: tl.constexpr):
    """The sums in a slot, where `sums` is the worker's part of slot 0 and slots are STRIDE elements apart."""
    return sums + tl.cast(slot, tl.int64) * STRIDE


@triton.jit
def arrive(flag, begins, weight, total):
    """Counts a part of this `weight`, of the tile's `total`, on its flag; `begins`: it has the tile's first K step.

    Returns whether it was the last part to arrive, and the flag before. What all threads of this program stored is
    visible to whoever arrives later, and what the parts before stored is visible to this program.
    """
    tl.debug_barrier()  # the stores of all threads come before the release by one
    added = weight + tl.where(begins, COUNT - (total - 1), 0)
    before = tl.atomic_add(flag, added, sem="acq_rel", scope="gpu")
    return (before & COUNT) + (added - 1) == COUNT, before


@triton.jit
def arrive_at_all(flags, first, end, distance, WORKERS: tl.constexpr):
    """Counts a part of weight 1 of each `distance`-th tile from `first` to before `end`. It does not wait.

    flags: the worker's flag of tile 0. Other programs begin these tiles; what all threads of this program stored before
    is visible to them once they have waited.
    """
    tl.debug_barrier()  # the stores of all threads come before the fence of one
    tl.inline_asm_elementwise("fence.acq_rel.gpu; // $0", "=r,~{memory}", [], tl.int32, is_pure=False, pack=1)
    for tile in range(first, end, distance):
        tl.atomic_add(flags + tile * WORKERS, 1, sem="relaxed", scope="gpu")


@triton.jit
def arrive_and_wait(flag, begins, total):
    """Counts one of `total` parts, then waits for all; what the others stored before is visible afterwards."""
    last, before = arrive(flag, begins, 1, total)
    now = tl.where(last, ~before, before)  # the last one, which the others wait for, does not read the flag again
    while (now ^ before) >= 0:
        now = tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.b32 $0, [$1];",
            "=r,l,~{memory}", [flag.to(tl.int64)], tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def last_arriver_fixup(acc, at, sums, flag, part, SPLIT_K: tl.constexpr, AREA: tl.constexpr, UNROLL: tl.constexpr):
    """Leaves `acc`, at offsets `at` of this part's slot. Returns the tile's sums if all other parts are there, and
    whether they are.

    sums, flag: the tile's own; UNROLL: parts whose loads are in flight together, or None to leave it to the compiler.
    """
    tl.store(sums + part * AREA + at, acc)
    last, before = arrive(flag, part == 0, 1, SPLIT_K)
    if last:
        acc = tl.load(sums + at, cache_modifier=".cg")
        for other in tl.range(1, SPLIT_K, loop_unroll_factor=UNROLL):
            acc += tl.load(sums + other * AREA + at, cache_modifier=".cg")
    return acc, last


@triton.jit
def add_parts(
    total, sums, first, last, at, inside, STRIDE: tl.constexpr, SLOTS: tl.constexpr, TOGETHER: tl.constexpr
):  # fmt: skip
    """`total` plus the sums that the programs from `first` to `last` left, at offsets `at`, where `inside`.

    TOGETHER: parts whose loads are in flight together.
    """
    for base in range(first, last + 1, TOGETHER):
        for i in tl.static_range(TOGETHER):
            part = slot_sums(sums, slot_of(base + i, base + i == first, SLOTS), STRIDE)
            total += tl.load(part + at, mask=inside & (base + i <= last), other=0, cache_modifier=".cg")
    return total
