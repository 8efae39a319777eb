"""The mixed-input kernel's configs worth trying for a problem, ranked by what limits a stream of weights."""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tritonmm.config import Config
from tritonmm.dtypes import FP8, PACKED
from tritonmm.families.family import Bounded
from tritonmm.families.mixed_input.rules import (
    LEGAL_BLOCK_M,
    assisted,
    column_pieces,
    fixup,
    ordered_mma,
    programs,
    reads_ahead,
    rescales,
    resident,
    rounds,
    scale_groups,
    shared_work,
    slice_k,
    stages_of_step,
    step_k,
    subtiles,
    waiting_parts,
)
from tritonmm.gpu import Gpu
from tritonmm.model import constants
from tritonmm.model.groups import as_equal, average, sizes_of
from tritonmm.model.time import Parts, Time, joined
from tritonmm.orders import Grouped, RowMajor, SwizzleMerge
from tritonmm.problem import Problem


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was fitted to one GPU.

    fixed_us: A launch that follows another, the start of its programs and their end.
    begin_us: What of that is saved where an SM has room for a program of two consumers beside one of the launch before.
    stream: Fraction of the bandwidth of device memory that all programs reach together if nothing else limits.
    step_us: From step to step of a program, for each of its consumers: barriers.
    slice_us: From slice to slice of a step: the way from shared memory to the tensor cores.
    subtile: Fraction of slice_us that each subtile but the first adds.
    alone: Fraction of slice_us that a slice takes where an SM has room for two such programs and runs one.
    beside: Of step_us and slice_us, what two programs of an SM do not hide of each other.
    latency_us: From a stage that is free to its next data.
    convert_us: An SM's time for an int8 or fp8 weight that it reads and converts.
    convert_int8p_us, convert_int4_us: The same for packed int8 and for int4, which take fewer instructions.
    convert_fp8_us: A consumer's time for an fp8 weight that it reads and converts while others multiply.
    multiply_us: An SM's time for a weight and a row of activations that it multiplies.
    scale_us: An SM's time for a sum of a step that it multiplies by its group's scale.
    short_group_us: What a scale group of less than 128 elements of K adds where sums are rescaled.
    write_us: An SM's time for a sum that it finishes and writes, or leaves as a part.
    fill: Time before the first step, as a multiple of the time to load the first stages of all programs from memory.
    tensor: Fraction of the tensor cores' peak rate that steps reach if nothing else limits.
    issue: Columns of sums in whose time the tensor cores wait for the weights of a product.
    overlap: The p of the p-norm that adds reading and computing: 1 would be one after the other.
    reduce_scatter_us: A cooperative launch, and the wait of programs that share a tile for each other.
    part_us: The same for each of them, in tiles of 128 rows of weights, and for each program that an SM holds.
    add_us: The time of such a program to store a sum for another program, and to add one that another has stored.
    last_arriver_us: The parts of a tile are stored and counted, and the last program reads them.
    pass_us: Each pass behind the first in which columns of the parts are added up.
    last_arriver_bandwidth: Bytes/s at which the one program that arrives last reads the sums of all parts.
    """

    fixed_us: float
    begin_us: float
    stream: float
    step_us: float
    slice_us: float
    subtile: float
    alone: float
    beside: float
    latency_us: float
    convert_us: float
    convert_int8p_us: float
    convert_int4_us: float
    convert_fp8_us: float
    multiply_us: float
    scale_us: float
    short_group_us: float
    write_us: float
    fill: float
    tensor: float
    issue: float
    overlap: float
    reduce_scatter_us: float
    part_us: float
    add_us: float
    last_arriver_us: float
    pass_us: float
    last_arriver_bandwidth: float


@functools.lru_cache(maxsize=16)
def fitted(gpu: Gpu) -> Fitted:
    """The constants of a GPU, from its record."""
    return Fitted(**constants.of(gpu).families["mixed_input"])


BLOCKS = {
    # Rows of the activations: (rows of the weights, block_k, num_stages, num_warps). Up to 32 rows by 128 the stages of
    # an SM hold 64 to 128 KB: more loads in flight take longer, docs/notebook/mixed_input.md.
    8: ((128, 256, 2, 8), (128, 256, 3, 8)),
    16: ((128, 128, 4, 8), (128, 256, 2, 8), (128, 256, 3, 8)),
    24: ((128, 128, 6, 8), (128, 128, 4, 8), (256, 128, 4, 8)),
    32: ((128, 128, 6, 8), (128, 128, 4, 8), (128, 256, 3, 8), (192, 128, 5, 12), (256, 128, 5, 8)),
    40: ((128, 128, 7, 8), (256, 128, 4, 8)),
    48: ((128, 128, 7, 8), (256, 128, 4, 8)),
    64: ((128, 128, 6, 8), (192, 128, 5, 12), (256, 128, 4, 8)),
    72: ((128, 128, 6, 8), (256, 128, 4, 8)),
    80: ((128, 128, 5, 8), (256, 128, 3, 8)),
    96: ((128, 128, 5, 8), (256, 128, 3, 8)),
    128: ((128, 128, 4, 8), (192, 128, 3, 12), (256, 128, 3, 8)),
    136: ((128, 128, 4, 8), (256, 128, 3, 8)),
    144: ((128, 128, 4, 8),),
    160: ((128, 128, 3, 8),),
    192: ((128, 128, 3, 8),),
    200: ((128, 128, 3, 8),),
    208: ((128, 128, 3, 8),),
    224: ((128, 128, 3, 8),),
    256: ((128, 64, 5, 8), (128, 64, 4, 8), (128, 128, 2, 8)),
}


INT4_BLOCKS = {
    # The same for int4.
    8: ((128, 256, 4, 8), (128, 128, 8, 8), (128, 256, 5, 8), (64, 256, 4, 4), (256, 256, 4, 8)),
    16: ((128, 256, 3, 8), (128, 128, 7, 8), (128, 256, 4, 8), (64, 256, 5, 4), (256, 256, 4, 8)),
    24: ((128, 128, 12, 8), (256, 128, 8, 8)),
    32: ((128, 128, 5, 8), (128, 128, 12, 8), (128, 256, 4, 8), (64, 256, 4, 4), (256, 256, 4, 8)),
    40: ((128, 128, 11, 8), (256, 128, 7, 8)),
    48: ((128, 128, 10, 8), (256, 128, 7, 8)),
    64: ((128, 128, 8, 8), (128, 256, 4, 8), (192, 128, 6, 12), (256, 128, 6, 8)),
    72: ((128, 128, 7, 8), (256, 128, 6, 8)),
    80: ((128, 128, 7, 8), (256, 128, 5, 8)),
    96: ((128, 128, 6, 8), (256, 128, 5, 8)),
    128: ((128, 128, 5, 8), (192, 128, 4, 12), (256, 128, 4, 8)),
    136: ((128, 128, 5, 8), (256, 128, 4, 8)),
    144: ((128, 128, 4, 8),),
    160: ((128, 128, 4, 8),),
    192: ((128, 128, 3, 8),),
    200: ((128, 128, 3, 8),),
    208: ((128, 128, 3, 8),),
    224: ((128, 128, 3, 8),),
    256: ((128, 64, 5, 8), (128, 128, 3, 8), (128, 128, 2, 8)),  # of equal estimates the first is chosen
}


def candidates(problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """As `Family.candidates`."""
    for block_m in _sizes_of_groups(problem) if problem.ragged else _sizes(problem):
        for block_n, block_k, stages, warps in (INT4_BLOCKS if problem.b_dtype == "int4" else BLOCKS)[block_m]:
            if problem.block_scaled and block_k > 2 * problem.group:  # a step has at most two scale groups
                shorter = max(64, 2 * problem.group)
                block_k, stages = shorter, min(12, stages * block_k // shorter)
            order = _order(problem, gpu, block_m, block_n)
            config = Config("mixed_input", block_m, block_n, block_k, stages, warps, order=order)
            yield from shares(config, problem, gpu)


def bounded(problem: Problem, gpu: Gpu) -> list[Bounded]:
    """As `Family.bounded`: one group and no bound, since a bound takes as long as an estimate."""
    return [Bounded(0.0, candidates(problem, gpu))]


def orders(config: Config, problem: Problem, gpu: Gpu) -> Iterable[Config]:
    """As `Family.orders`: none, `_order` has the one that reads weights least often."""
    return ()


def passed_over(problem: Problem, gpu: Gpu) -> str:
    """As `Family.passed_over`: elsewhere than on Hopper with weights of 8 or 4 bits."""
    mixed = problem.element_bytes == 2 and problem.b_element_bytes <= 1
    if mixed and gpu.capability == 90 and problem.m > 0 and problem.k > 0 and problem.ragged != "k":
        return ""
    return "considered only on sm_90, for M and K above 0, and not where groups divide K"


def _sizes(problem: Problem) -> list[int]:
    """Rows of tiles worth trying: the fewest for each number of tiles up to that of 128 rows, or two, and powers of
    two."""
    m = problem.m
    if m <= 64:
        low = next(rows for rows in LEGAL_BLOCK_M if rows >= m)
        high = 1 << (low - 1).bit_length()  # one subtile, since only such tiles read ahead
        return sorted({low, high}) if problem.b_dtype == "int4" else [low]
    fewest = {-(-m // rows): rows for rows in reversed(LEGAL_BLOCK_M)}
    most = max(-(-m // 256) + 1, -(-m // 128))
    least = [rows for tiles, rows in fewest.items() if tiles <= most]
    also = (rows for rows in (64, 128, 256) if rows < m or least[0] > 192)  # three subtiles are not always legal
    return sorted({*least, *also})


def _sizes_of_groups(problem: Problem) -> list[int]:
    """Powers of two of rows worth trying where groups divide them: up to the first that holds the largest group."""
    largest = max(sizes_of(problem), default=0)
    return [rows for rows in (8, 16, 32, 64, 128, 256) if rows < 2 * max(largest, 8)]


def _order(problem: Problem, gpu: Gpu, block_m: int, block_n: int) -> RowMajor | SwizzleMerge | Grouped:
    """Groups of tiles with the same weights, as many as let a wave read the fewest bytes, all of about one size."""
    if problem.ragged:
        return Grouped(_order(average(problem), gpu, block_m, block_n))
    tiles_m = -(-problem.m // block_m)
    if tiles_m == 1:
        return RowMajor()
    tall = math.sqrt(gpu.sms * block_n * problem.b_element_bytes / (block_m * problem.element_bytes))
    return SwizzleMerge(max(1, -(-tiles_m // max(1, round(tiles_m / tall)))))


def shares(config: Config, problem: Problem, gpu: Gpu) -> list[Config]:
    """The config with persistent programs, of which two also split the K of a tile of their last round where that is
    legal, and with one program for each tile, or such numbers of them as the SMs hold.

    split_k, split_tail and persistent of `config` are of no account.
    """
    tiles_m, tiles_n = config.tiles(problem)
    full = (gpu.sms * held // max(tiles_m * tiles_n, 1) for held in range(1, resident(config, problem) + 1))
    most = max(1, -(-problem.k // step_k(config, problem)))
    splits = [1] if problem.fixes_sums else sorted({1, *(min(max(1, split), most) for split in full)})
    persistent = replace(config, split_k=1, split_tail=1, persistent=True)
    if problem.ragged:
        return [persistent]
    halved = replace(persistent, split_tail=2)
    tails = [halved] if halved.fits(problem, gpu) else []
    return [persistent, *tails, *(replace(persistent, split_k=split, persistent=False) for split in splits)]


def lower_bound(config: Config, problem: Problem, gpu: Gpu) -> float:
    """As `Family.lower_bound`: the kernel has one order of tiles."""
    return estimate(config, problem, gpu).us


def estimate(config: Config, problem: Problem, gpu: Gpu) -> Time:
    """As `Family.estimate`: a launch, what reading and computing take beside each other, and the fixup. Groups of rows
    count as equal ones.

    docs/notebook/mixed_input.md, "What the time model is fitted to", has the measurements and the errors.
    """
    p, f = problem, fitted(gpu)
    moved = _moved(config, p, gpu)
    tiles = moved.tiles
    step = step_k(config, p)
    steps = -(-p.k // step)
    count = max(1, programs(config, p, gpu, tiles))
    how = fixup(config, count, tiles)
    slots = gpu.sms * resident(config, p)
    waves, running = -(-count // slots), min(count, slots)
    held = -(-running // gpu.sms)  # an SM's programs share its units, and hide latencies
    convert_us = {"int8p": f.convert_int8p_us, "int4": f.convert_int4_us}.get(p.b_dtype, f.convert_us)
    weights_us = config.block_n * step * (convert_us + f.multiply_us * config.block_m)
    scales_us = scale_groups(config, p) * config.block_n * config.block_m * f.scale_us
    pieces = -(-tiles // count) + (how == "last-arriver" and count % tiles > 0)  # of a program that cuts two tiles
    busy_us = weights_us + scales_us
    slices = step // min(slice_k(config, p), 64)  # a slice of 128 takes as long as two
    if reads_ahead(config, p) and ordered_mma(config, p):
        slices -= 1  # one is converted while another consumer multiplies
    slice_us = f.slice_us * (1 + f.subtile * (len(subtiles(config)) - 1))
    if resident(config, p) > held and config.num_warps > 4:
        slice_us *= f.alone
    way_us = config.num_warps // 4 * f.step_us + slices * slice_us
    products = (config.block_m + f.issue) * config.block_n * step
    tensor_us = 2 * products / (f.tensor * gpu.rate(p.dtype) / gpu.sms) * 1e6
    latency_us = f.latency_us * stages_of_step(config, p) / (config.num_stages - 1)
    if ordered_mma(config, p) and rescales(config, p):  # one consumer converts and scales while another multiplies
        consumers = config.num_warps // 4  # each waits for the others, and more so with sums of several subtiles
        loads = 0.5 if p.b_dtype in PACKED else 1.4 if p.b_dtype in FP8 else 1.0  # packed weights take fewer
        turns_us = consumers / 2 * (1 + len(subtiles(config))) / 2 * loads * f.step_us
        step_us = max(tensor_us + turns_us, latency_us)
        if p.b_dtype in FP8:  # a consumer may convert for longer than the others multiply
            weights = config.block_n * step / consumers
            step_us = max(step_us, tensor_us / consumers + weights * f.convert_fp8_us)
        if p.group < 128:
            step_us = max(step_us, tensor_us + scale_groups(config, p) * f.short_group_us)
    else:
        step_us = max(way_us + busy_us, held * (busy_us + f.beside * way_us), latency_us, held * tensor_us)
    stage = step * (config.block_n * p.b_element_bytes + min(moved.rows, config.block_m) * p.element_bytes)
    first_us = f.fill * stage * running / gpu.bandwidth * 1e6
    most = -(-tiles * steps // count) if how else -(-tiles // count) * steps  # steps of a program
    piece_us = config.block_n * min(moved.rows, config.block_m) * f.write_us
    work_us = most * step_us + pieces * piece_us
    if config.split_tail > 1:  # two programs share a tile of the last round
        second, _ = shared_work(config, p, count, tiles)
        added_us = piece_us if how == "assist" else 0.0  # the sums of the other one
        last_us = max(
            (steps - second) * step_us + piece_us + added_us,
            assisted(count, tiles) * (second * step_us + piece_us),
        )
        work_us = rounds(config, count, tiles) * (steps * step_us + piece_us) + last_us
    compute_us = waves * (first_us + work_us)
    read_us = _read_bytes(config, p, gpu, moved, count) / (f.stream * gpu.bandwidth) * 1e6
    split_us = _fixup_us(config, p, f, moved, count, held)
    # SMs get equal shares of the bandwidth. A round of programs has one for each SM; in the last round some SMs may
    # have none, while the others still read.
    full, rest = divmod(count, gpu.sms)
    each_us = compute_us / (full + (rest > 0))
    full_us, rest_us = (joined((part / count * read_us, each_us), f.overlap) for part in (gpu.sms, rest))
    beside = 2 * count <= slots and config.num_warps > 4
    launch_us = moved.before_us + f.fixed_us - (f.begin_us if beside else 0.0)
    us = launch_us + full * full_us + (rest > 0) * rest_us + split_us
    return Time(us, Parts(mma=compute_us, dram=read_us, launch=launch_us, split_k=split_us))


def _read_bytes(config: Config, problem: Problem, gpu: Gpu, moved: "_Moved", count: int) -> float:
    """Bytes that `count` programs read from memory and write to it: some weights, and activations, more than once."""
    p, tiles_m, tiles = problem, moved.tiles_m, moved.tiles
    order = config.order.inner if isinstance(config.order, Grouped) else config.order
    tall = order.factors[0] if isinstance(order, SwizzleMerge) else 1  # tiles that read weights together
    again: float = -(-tiles_m // tall) - 1
    found = moved.once_bytes
    live = p.operand_bytes("a") + min(count, moved.tiles_n) * config.block_n * p.k * p.b_element_bytes
    if fixup(config, count, tiles) == "last-arriver" and live > gpu.l2_bytes:
        # Programs that share tiles read other steps of K. L2 has lost what it cannot hold when it is their turn.
        shared = tiles - rounds(config, count, tiles) * count
        again += (tiles_m - 1 - again) * shared / tiles
        if p.operand_bytes("a") > gpu.l2_bytes / 2:
            found += shared * min(moved.rows, config.block_m) * p.k * p.element_bytes
    return found + again * moved.weight_bytes


def _fixup_us(config: Config, problem: Problem, f: Fitted, moved: "_Moved", count: int, held: int) -> float:
    """Time of `count` programs, so many of each SM, that add up the parts of tiles that they share."""
    tiles = moved.tiles
    how = fixup(config, count, tiles)
    if how in ("reduce-scatter", "exchange", "assist"):
        parts = waiting_parts(config)
        sums = config.block_n * min(moved.rows, config.block_m)
        return f.reduce_scatter_us + held * parts * config.block_n / 128 * f.part_us + (1 - 1 / parts) * sums * f.add_us
    if how == "last-arriver":
        parts = -(-count // tiles) + (count % tiles > 0)
        (passes,) = column_pieces(config, problem)
        sums = parts * config.block_n * config.block_m
        return f.last_arriver_us + f.pass_us * (passes - 1) + 4 * sums / f.last_arriver_bandwidth * 1e6
    return 0.0


class _Moved(NamedTuple):
    """The tiles of a config, and what they read.

    tiles_m, tiles_n: of the product, or of one group of average size; rows: of its activations. tiles: of all groups.
    once_bytes: operands and output once. weight_bytes: all weights. before_us: a launch that makes the table of groups.
    """

    tiles_m: int
    tiles_n: int
    tiles: int
    rows: int
    once_bytes: int
    weight_bytes: int
    before_us: float


def _moved(config: Config, problem: Problem, gpu: Gpu) -> _Moved:
    p = problem
    if not p.ragged:
        tiles_m, tiles_n = config.tiles(p)
        return _Moved(tiles_m, tiles_n, tiles_m * tiles_n, p.m, p.compulsory_bytes, p.operand_bytes("b"), 0.0)
    equal = as_equal(p, config)
    one = equal.problem
    once_bytes = equal.operand_bytes + equal.output_bytes
    before_us = constants.of(gpu).shared.repack_us
    return _Moved(*equal.config.tiles(one), equal.tiles, one.m, once_bytes, one.operand_bytes("b"), before_us)
