"""The skinny configs worth trying for a problem: what fills the GPU, ranked by the bytes it moves."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tritonmm.config import Config
from tritonmm.families.common_rules import portable_shared_bytes as shared_bytes
from tritonmm.families.family import Bounded
from tritonmm.families.skinny.rules import streams_a
from tritonmm.gpu import Gpu
from tritonmm.model import constants, element_loads
from tritonmm.model.time import Parts, Time, crossing, joined
from tritonmm.orders import RowMajor
from tritonmm.problem import Problem

NARROW, LONG = 64, 512
"""The skinny kernel is considered for outputs of at most NARROW rows or columns by at least LONG of the other."""

ROW_PROGRAMS = 8
"""Programs that an SM holds of those that multiply one row by 8-bit weights with scales of rows, whose threads take 110
to 120 registers. With scales of groups they take 64 to 71, and count alike."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was fitted to one GPU.

    launch_us: What a launch costs that follows another: it starts while the other still runs.
    start_us: From the start of a program to its first product, and from its last one to its end.
    short_us: The same where all of its K is one step.
    crossed: What reading costs more where lines of the streamed operand begin anywhere in cache lines.
    stream: Of the bandwidth of device memory, what lines of 256 bytes or more reach, as a copy does.
    short_share: The same of shorter lines.
    latency_us: From a load to its data: the bytes in flight of all programs are moved once in this time, at best.
    fewer: The power with which what device memory delivers falls with the share of SMs that are busy:
        16x11840x11648 takes 78 us in 93 programs and 69 in 185 (h200-random-fit.csv in autotune/results).
    mma_share: Of the peak rate, what the products of a program's blocks reach, those beyond the matrices included.
    fp32_mma_share: The same in fp32, on CUDA cores: 13 products of autotune/results/h200-mixed420.csv.gz took 1.4 to
        11 times as long as with the share of tensor cores. One row or column is not multiplied so.
    transposed_mma_share: The same in tf32 where an operand does not lie along K, as wgmma needs it: seven products
        of that file took twice to four times as long.
    small_us: What a program takes longer in tiles of at most 32 x 32, which are too small for wgmma, whatever its
        K.
    again_us: What it costs that several columns of tiles, or rows, read the larger operand: most wait for lines
        that are on their way to others. 976x64x128 takes 2.0 us in tiles of 32 x 64, and 2.5 in 64 x 32
        (h200-random74.csv).
    overlap: The p of the p-norm that joins memory, L2, loads and products: no two of them overlap perfectly.
    caution: What the estimates for tensor cores are multiplied by, since they err more than those of the Hopper
        kernel, and the shortest of many estimates is likely one that errs.
    l2_bandwidth: Bytes/s that all SMs together read through L2, where neighbours share what they ask for.
    crossed_l2: What a byte costs more there whose line begins anywhere in cache lines, in loads of 16 bytes.
    fixup_us: What it costs that parts of a tile meet: stores, a count and loads, one after the other.
    grouped_us: What the scales of groups of K take, whatever the product: autotune/results/h200-weights-2.csv, on
        tensor cores. On CUDA cores, for one row, they took -0.1 to 6 us: h200-dtypes-7.csv.
    fixup_bandwidth: Bytes/s at which the one program that arrives last reads the sums of all parts.
    unlisted_rate: Weights that an SM converts in a second in programs of other blocks.
    round_us: What as many such programs as are resident cost beside what they convert.
    last_round: Of the time of a round, what the last takes at least, however few programs are left for it.
    row_rounds_us: What it costs that there are twice as many programs for one row by 8-bit weights as the SMs hold, or
        more: 14336 x 4096 weights take 20.0 us, 28672 x 4096 34.3 and 28672 x 8192 62.3, of which reading is 13.6, 27.2
        and 54.4; 4096 x 4096, with fewer programs, 6.9 of 3.9. 8192 x 28672 take 62.9 of 54.4 packed, and 56.4 as int8
        (h200-weights-2, -9, -26 and -26-configs).
    """

    launch_us: float
    start_us: float
    short_us: float
    crossed: float
    stream: float
    short_share: float
    latency_us: float
    fewer: float
    mma_share: float
    fp32_mma_share: float
    transposed_mma_share: float
    small_us: float
    again_us: float
    overlap: float
    caution: float
    l2_bandwidth: float
    crossed_l2: float
    fixup_us: float
    grouped_us: float
    fixup_bandwidth: float
    unlisted_rate: float
    round_us: float
    last_round: float
    row_rounds_us: float


@functools.lru_cache(maxsize=16)
def fitted(gpu: Gpu) -> Fitted:
    """The constants of a GPU, from its record."""
    return Fitted(**constants.of(gpu).families["skinny"])


_SHAPES = {
    # Rows of the smaller operand: (rows of the streamed one, block_k of 2-byte elements, num_stages, num_warps)
    16: ((64, 128, 4, 4), (64, 64, 5, 4), (64, 256, 3, 4), (128, 128, 4, 4), (256, 64, 4, 8)),
    32: ((32, 256, 4, 4), (64, 64, 5, 4), (64, 128, 4, 4), (128, 64, 5, 4), (128, 128, 4, 4), (256, 64, 4, 8)),
    64: ((32, 128, 5, 4), (64, 64, 5, 4), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 3, 8), (256, 64, 4, 8)),
    128: ((32, 128, 4, 4), (64, 64, 5, 4), (64, 128, 4, 4), (128, 64, 4, 8), (128, 128, 3, 8), (256, 64, 3, 8)),
    256: ((32, 64, 4, 4), (64, 64, 4, 8), (128, 64, 4, 8), (32, 128, 3, 4)),
}  # fmt: skip

_CONVERTING = {
    # The same where weights are converted on their way, each with the programs an SM for which K is split, and with
    # the weights that an SM full of such programs takes in a second: fits to autotune/results/h200-weights.csv, but
    # those of 32, which are guesses between the others.
    16: {(64, 256, 3, 2): (8, 30e9), (32, 128, 4, 2): (8, 25e9), (64, 128, 4, 2): (8, 22e9)},
    32: {(64, 256, 3, 2): (8, 23e9), (32, 128, 4, 2): (8, 21e9), (64, 128, 4, 4): (4, 18e9)},
    64: {(64, 128, 4, 4): (4, 17e9), (128, 256, 3, 8): (1, 16e9), (128, 128, 3, 4): (4, 15e9)},
}  # fmt: skip


def candidates(problem: Problem, gpu: Gpu) -> list[Config]:
    """As `Family.candidates`, the fewest stages first.

    They keep all programs resident at once, one to eight an SM, so that all stream until the end. Invariant sums are
    not split.
    """
    found = set()
    for config, per_sm in _candidates(problem, gpu):
        tiles = _tiles(config, problem)
        steps = max(1, -(-problem.k // config.block_k))
        most = steps // 2 if _converts(config, problem) else steps
        if problem.fixes_sums:
            found.add(config)
            continue
        found |= {replace(config, split_k=max(1, min(share * gpu.sms // max(tiles, 1), most))) for share in per_sm}
    return sorted(found, key=lambda config: (config.num_stages, str(config)))


def bounded(problem: Problem, gpu: Gpu) -> list[Bounded]:
    """As `Family.bounded`: one group and no bound, since a bound takes as long as an estimate."""
    return [Bounded(0.0, candidates(problem, gpu))]


def orders(config: Config, problem: Problem, gpu: Gpu) -> Iterable[Config]:
    """As `Family.orders`: each program reads its part of the larger operand once, in any order."""
    return ()


def passed_over(problem: Problem, gpu: Gpu) -> str:
    """As `Family.passed_over`: where the output is not long and narrow."""
    multiplied = problem.sum_dtype == "fp32" and problem.element_bytes > 1 and problem.k > 0
    if problem.b_dtype == "int4":
        return "considered only for weights of 8 and 16 bits"
    if multiplied and min(problem.m, problem.n) <= NARROW and max(problem.m, problem.n) >= LONG:
        return ""
    return f"considered only for at most {NARROW} rows or columns by at least {LONG}, K above 0"


def _tiles(config: Config, problem: Problem) -> int:
    tiles_m, tiles_n = config.tiles(problem)
    return tiles_m * tiles_n * problem.batch


def _candidates(problem: Problem, gpu: Gpu):
    """Configs that do not split, each with the programs an SM for which its split is to be chosen."""
    p = problem
    swapped = p.m > p.n

    def config(narrow, wide, *rest):
        blocks = (wide, narrow) if swapped else (narrow, wide)
        return Config("skinny", *blocks, *rest, order=RowMajor())

    vector = min(p.m, p.n) <= 1 and not p.fixes_sums  # invariant sums are illegal in blocks of 1
    if vector and (not p.block_scaled or (p.layout[1] == "t" and not swapped)):
        if p.layout[0] == "n" if swapped else p.layout[1] == "t":
            # A step of all warps is one row of 16-byte loads: X is then loaded in the layout of W. Two stages at least:
            # ptxas defers loads into registers to where they are used, and one or two a thread remain in flight.
            lanes = 32 if gpu.is_nvidia else 64
            element_bytes = p.element_bytes if swapped else p.b_element_bytes
            shapes: tuple[tuple[int, int, int], ...] = (8, 3, 4), (4, 3, 4), (8, 4, 2), (4, 3, 8), (8, 2, 4), (4, 4, 4)
            if element_bytes == 1:  # others take 1 to 24% longer: autotune/results/h200-weights.csv
                shapes = ((4, 4, 2),)
            for wide, stages, warps in shapes:
                yield config(1, wide, lanes * warps * 16 // element_bytes, stages, warps), (4, 8)
        else:
            for wide, block_k, stages in ((128, 64, 3), (256, 32, 4), (64, 64, 4), (64, 32, 3)):
                yield config(1, wide, block_k, stages, 4), (1, 2, 4)
        return
    by_element = _by_element(p)
    for narrow in _narrow(p):
        if narrow in _CONVERTING and not by_element and _converts(config(narrow, narrow, 1, 1, 1), p):
            for (wide, block_k, stages, warps), (share, _) in _CONVERTING[narrow].items():
                if not p.block_scaled:
                    yield config(narrow, wide, block_k, stages, warps), (share,)
                elif block_k <= 128:
                    yield config(narrow, wide, min(block_k, p.group), stages, warps), (share,)
        else:
            for wide, block_k, stages, warps in _SHAPES[narrow]:
                block_k = min(int(block_k * 2 // p.b_element_bytes), p.group if p.block_scaled else block_k * 2)
                block_k = min(block_k, max(32, 1 << (p.k - 1).bit_length()))  # what lies beyond K is work, too
                while by_element and block_k > 16 and (wide + narrow) * block_k > 32 * 32 * warps:
                    block_k //= 2  # 32 elements a thread, with an address and a mask each
                one = config(narrow, wide, block_k, stages, warps)
                resident = max(1, min(gpu.shared_bytes // shared_bytes(one, p, gpu), 4))
                yield one, (1, 2, 4)[:resident]
        if p.element_bytes == 4 or gpu.shared_bytes < 2**17:  # little shared memory, few registers for fp32 operands
            yield config(min(narrow, 64), 64, 32, 2, 4), (1, 2)
            yield config(16, 32, 32, 2, 4), (1, 4)


def _narrow(problem: Problem) -> tuple[int, ...]:
    """Blocks of the smaller operand: all of it where that fits; where little is read, many small tiles."""
    size = 1 << (max(16, min(problem.m, problem.n)) - 1).bit_length()
    if problem.compulsory_bytes <= 2**22:
        return tuple({min(size, 32), min(size, 64)})
    return {256: (128, 256)}.get(size, (min(size, 128),))


def _by_element(problem: Problem) -> bool:
    """Whether loads go through registers, two or four bytes each."""
    return "s" in problem.layout or problem.alignment < 4


def _converts(config: Config, problem: Problem) -> bool:
    """Whether 8-bit weights are streamed along K to tensor cores, which multiply another dtype."""
    narrow = min(config.block_m, config.block_n)
    return problem.b_element_bytes == 1 and problem.layout[1] == "t" and narrow > 1 and not streams_a(config)


def _mma_share(problem: Problem, narrow: int, f: Fitted) -> float:
    """The share of the peak rate that blocks of so many rows of the smaller operand reach."""
    if problem.dtype == "fp32" and narrow > 1:
        if problem.precision == "ieee":
            return f.fp32_mma_share
        if problem.precision == "tf32" and problem.layout != "nt":
            return f.transposed_mma_share
    return f.mma_share


def lower_bound(config: Config, problem: Problem, gpu: Gpu) -> float:
    """As `Family.lower_bound`: the kernel has one order of tiles."""
    return estimate(config, problem, gpu).us


def estimate(config: Config, problem: Problem, gpu: Gpu) -> Time:
    """What a launch costs and its start, reading from device memory or through L2, and the gathering of the parts.

    The constants are fits to an H200 (burst, 2026-11-22). Those on tensor cores are fitted to the random GEMMs in
    autotune/results but the last seven files', `small_us` and `again_us` to -random60 to -random76, `short_us` and
    `latency_us` to -random80. 300 aligned configs of -random60 to -random76 that are within 35% of a GEMM's best are
    off by 14% (root mean square, without `caution`), and those with loads of single elements by 12%. Those of converted
    weights are fitted to 130 times of bf16 with int8 and fp8e4m3, 1 to 64 rows; most are within 15%.
    """
    p, f = problem, fitted(gpu)
    a_bytes, b_bytes = map(p.operand_bytes, "ab")
    tiles_m, tiles_n = config.tiles(p)
    programs = max(1, _tiles(config, p) * config.split_k)
    by_element = _by_element(p)
    resident = element_loads.resident(config, gpu) if by_element else gpu.shared_bytes // shared_bytes(config, p, gpu)
    resident = max(1, min(resident, 4))
    slots = gpu.sms * resident
    wide = max(config.block_m, config.block_n)
    element_bytes = p.element_bytes if streams_a(config) else p.b_element_bytes
    step = wide * config.block_k * element_bytes
    along_k = p.layout[0] == "n" if streams_a(config) else p.layout[1] == "t"
    line = (config.block_k if along_k else wide) * element_bytes
    steps = -(-p.k // (config.block_k * config.split_k))
    in_flight = max(1, min(programs, slots)) * max(1, min(config.num_stages - 1, steps)) * step
    share = (f.stream if line >= 256 else f.short_share) * min(1, programs / gpu.sms) ** f.fewer
    a_crosses, b_crosses = crossing(p, "")
    read_bytes = p.compulsory_bytes * (1 + f.crossed * (a_crosses if streams_a(config) else b_crosses))
    a_cost, b_cost = (1 + f.crossed_l2 * (crosses and not by_element) for crosses in (a_crosses, b_crosses))
    l2_us = (a_bytes * tiles_n * a_cost + b_bytes * tiles_m * b_cost) / f.l2_bandwidth * 1e6
    narrow = min(config.block_m, config.block_n)
    most = -(-programs // gpu.sms)  # on one SM
    flops = 2 * wide * narrow * config.block_k * steps * most * gpu.sms
    mma_us = flops / (gpu.rate(p.dtype, p.precision) * _mma_share(p, narrow, f)) * 1e6
    shared = constants.of(gpu).shared
    loads_us = (
        element_loads.loads_us(config, p, gpu, programs, shared)
        if by_element
        else read_bytes * f.latency_us / in_flight
    )
    dram_us = read_bytes / (share * gpu.bandwidth) * 1e6
    limits = [dram_us, loads_us, l2_us, mma_us]
    if _converts(config, p):
        blocks = wide, config.block_k, config.num_stages, config.num_warps
        _, rate = _CONVERTING.get(narrow, {}).get(blocks, (0, f.unlisted_rate))
        slots = gpu.sms * max(1, min(gpu.shared_bytes // shared_bytes(config, p, gpu), 8))
        whole, rest = divmod(programs, slots)
        full = whole + (max(rest / slots, f.last_round) if rest else 0)
        limits.append(f.round_us * programs / slots + b_bytes / programs * slots / gpu.sms * full / rate * 1e6)
    work_us = joined(limits, f.overlap)
    starts = 1 if resident > 1 else -(-programs // slots)  # a second one on the SM streams meanwhile
    start_us = f.short_us if config.block_k * config.split_k >= p.k else f.start_us
    launch_us = f.launch_us + start_us * starts + (f.grouped_us if p.block_scaled else 0)
    if not by_element and not _converts(config, p):  # those that convert were fitted without, the others wait longer
        launch_us += f.small_us * (1 < narrow and wide < 64) + f.again_us * (
            (tiles_n if a_bytes > b_bytes else tiles_m) > 1
        )
    if narrow == 1 and p.b_element_bytes == 1:
        launch_us += f.row_rounds_us * min(1.0, max(0.0, programs / (gpu.sms * ROW_PROGRAMS) - 1))
    split_us = 0.0
    if config.split_k > 1:
        split_us = f.fixup_us + config.split_k * config.block_m * config.block_n * 4 / f.fixup_bandwidth * 1e6
    us = (launch_us + work_us + split_us) * (f.caution if narrow > 1 else 1)
    return Time(
        us,
        Parts(
            max(mma_us, *limits[4:]) if limits[4:] else mma_us, max(dram_us, loads_us), l2_us, launch_us, 0.0, split_us
        ),
    )
