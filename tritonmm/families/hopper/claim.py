"""Tiles by SM: programs of the Hopper kernel that take the tile of the SM they run on, not that of their number.

A grid that starts early gets the SMs that the one before it has left free, and the order in which they become free
decides which program runs where. So of 68 to 131 programs many share a GPC while others stay idle, and what a GPC
receives from L2 is limited: of the 80 programs of 64x5120x4096 those in four full GPCs took 13 to 15 us for their
loop, and 14 in the four others 10; launched in turn, all took 11 to 12 (autotune/results/h200-programs.csv). And
neighbours, which ask for the same rows at the same time, do not sit together: what the two SMs of a TPC ask for at the
same time comes once.

Here a grid is as many programs as there are SMs, whatever the tiles, and a program's tile is its SM's: its seat. SMs
are numbered TPC by TPC, and TPCs across the GPCs, so seats in that order are "pairs", neighbours in a TPC, and even
SMs before odd ones are "singles", spread over as many TPCs and GPCs as there are. The others have nothing to do.

That each seat is taken once must not depend on where programs run: an SM that another grid has kept busy gets none,
and another two. So seats are claimed, a flag each. Who finds its own taken looks for one that is not: there are as many
seats as programs, and none has two, so it finds one. But nobody waits for that. A program begins with the tile of its
own seat, since it is almost always its own; meanwhile a warp beside the loader, the usher, claims it. If it was taken,
the program does that tile for nothing, since who owns it writes the same bits there, and then the tile of the seat that
the usher found. (Hence not where C is added: it may be the output.) The usher that is the last of all leaves the flags
as they were found.

Measured on an H200 (bf16, NT, burst, one process, 2026-11-22, autotune/results/h200-seats.csv): 64x5120x4096 takes
13.2 us so and 16.0 without, 100x7168x8192 33.7 and 35.2, 256x4096x4096 in pairs 16.3 and 17.2. It costs 0.2 us, and
the next grid starts 1 us later than it could, after the ushers, which is lost where a grid takes less than 5 us.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tritonmm.device.gluon_compat import barrier, let_next_grid_start, wait_for_previous_grid
from tritonmm.device.split_k import arrive


@gluon.jit
def own_seat(TILING: gl.constexpr):
    """The seat of this SM. Outside of warp specialisation: all warps of the program get the same."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, 128, LANES)
    sm = gl.inline_asm_elementwise("mov.u32 $0, %smid; // $1", "=r,r", [lanes], gl.int32, is_pure=False, pack=1)
    seats = gl.num_programs(0)
    seat = gl.minimum(gl.max(sm, 0), seats - 1)
    if TILING.seats == "singles":
        half = (seats + 1) // 2
        seat = seat // 2 + seat % 2 * half
    barrier()  # the maximum was in memory that Triton 3.6 gives to the partitions' arguments next
    return seat


@gluon.jit
def usher(flags, own, told):
    """One warp: claims `own` seat or another, tells which it was, and lets the next grid start.

    flags: how many ushers are done, and for each seat whether it is taken, in bits below the top one, which is left as
    it is; others are zero between launches.
    """
    buf, bar = told
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    seats = gl.num_programs(0)
    wait_for_previous_grid()  # the flags may be its
    seat = own
    taken = gl.atomic_or(flags + 1 + seat, 1, sem="relaxed", scope="gpu") & 1
    if taken != 0:
        seat = -1
        while taken != 0:
            seat += 1
            taken = gl.atomic_or(flags + 1 + seat, 1, sem="relaxed", scope="gpu") & 1
    buf.store(gl.full([32], 0, gl.int32, LANES) + seat)
    mbarrier.arrive(bar, count=1)
    last, _ = arrive(flags, gl.program_id(0) == 0, 1, seats)
    if last:
        lanes = gl.arange(0, 32, LANES)
        for first in range(1, seats + 1, 32):
            gl.atomic_and(flags + first + lanes, lanes * 0 - 2, mask=first + lanes <= seats, sem="relaxed", scope="gpu")
    let_next_grid_start()


@gluon.jit
def given_seat(told, WARPS: gl.constexpr):
    """The seat that the usher claimed, for a partition of so many warps; waits for it."""
    buf, bar = told
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    mbarrier.wait(bar, 0)
    return gl.max(buf.load(LANES), 0)


@gluon.jit
def first_seat(own, items, told, WARPS: gl.constexpr):
    """The seat whose tile this program begins with: its own, if that has a tile."""
    seat = own
    if own >= items:
        seat = given_seat(told, WARPS)
    return seat


@gluon.jit
def next_seat(seat, items, told, WARPS: gl.constexpr):
    """The seat whose tile comes after that of `seat`, or one without a tile."""
    given = given_seat(told, WARPS)
    return gl.where(given == seat, items, given)
