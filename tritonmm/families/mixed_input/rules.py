"""What the mixed-input kernel can multiply, and how its programs divide the tiles."""

import math

from tritonmm.config import Config
from tritonmm.dtypes import HALF, WEIGHTS
from tritonmm.families.common_rules import (
    BARRIER_BYTES,
    ONE_DIE,
    one_chain_reason,
    one_die_reason,
    shared_memory_reason,
    single_cta_reason,
    tma_reason,
)
from tritonmm.gpu import Gpu
from tritonmm.orders import Grouped
from tritonmm.problem import Epilogue, Problem

LEGAL_BLOCK_M = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 136, 144, 160, 192, 200, 208, 224, 256)
"""Rows of activations in a tile: powers of two, as the shapes of tensors are, and sums of up to three."""

MOST_SUBTILES = 3
"""Powers of two of which such a sum may be."""

SUM_REGISTERS = 164
"""Registers of a thread for sums, totals and scales. With two consumers a thread has 240, or 224 with scale groups.

This bound and the three below are the largest with which no tile spills: `tests/test_compile.py` compiles every tile.
"""

SUM_REGISTERS_WITH_ADDENDS = 148
"""The same where the epilogue adds a bias or C: their addresses and values take registers."""

SUM_REGISTERS_OF_FOUR_BLOCKS = 140
"""The same where a consumer has several subtiles of 128 rows of weights: four wgmma accumulators or more."""

SUM_REGISTERS_OF_THREE_CONSUMERS = 68
"""The same with three consumers: a thread has 160 registers, or 152 with scale groups."""

MOST_SHARED_ROWS = 208
"""Rows of a tile of three subtiles that several programs may share."""

_STORE_K, _ADD_K = 384, 256
"""Elements of K that are multiplied while a program begins a tile and stores its sums, and while another adds them."""

RESERVED_BYTES = 1024
"""Shared memory that the system takes for each CTA, in bytes. Source: CUDA C++ Programming Guide, sm_90."""

SM_SHARED_BYTES = 228 * 1024
"""Shared memory of an SM of sm_90, in bytes. Source: as above."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or ""."""
    return (
        _tile_reason(config, problem, gpu)
        or tma_reason(problem)
        or single_cta_reason(config)
        or one_chain_reason(config, problem)
        or shared_memory_reason(shared_bytes(config, problem, gpu), gpu)
        or _share_reason(config, problem, gpu)
        or one_die_reason(config, ONE_DIE)
    )


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the dtypes, layouts or blocks are not legal, or "": B of 8 or 4 bits, and K contiguous in A and B."""
    p = problem
    if gpu.capability != 90:
        return f"the mixed-input kernel needs sm_90; {gpu.name} is {gpu.arch}"
    if p.dtype not in HALF or p.b_dtype not in WEIGHTS:
        weights = "int8, int4 and fp8"
        return f"dtypes are {p.dtype} and {p.b_dtype}; the mixed-input kernel multiplies bf16 and fp16 by {weights}"
    if p.layout != "nt":
        return f"layout is {p.layout}; the mixed-input kernel takes nt: K contiguous in both operands"
    if p.batch > 1:
        return f"batch is {p.batch}; the mixed-input kernel computes one GEMM"
    if p.ragged == "k":
        return "groups divide k; the mixed-input kernel multiplies groups of rows"
    if p.ragged and (config.split_k > 1 or not config.persistent):
        return (
            f"split_k and persistent are {config.split_k} and {config.persistent}; only the device knows how many tiles"
            " groups have, so persistent programs loop over whole ones"
        )
    if p.scales not in ("", "row", "group", "group-zero"):
        return f"scales are {p.scales}; the mixed-input kernel takes scales of each row of the weights, row or group"
    if p.block_scaled and scale_groups(config, p) not in (1, 2):
        return f"block_k is {config.block_k}; a step must have one or two scale groups, of {p.group} elements of K each"
    steps = -(-p.k // step_k(config, p))
    if config.persistent and config.split_k > 1:
        return f"split_k is {config.split_k}; persistent programs take 1: they divide the steps by themselves"
    if config.split_k > max(steps, 1):
        return f"split_k is {config.split_k}; there are {steps} steps of K"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; the pipeline needs at least 2"
    blocks = config.block_n, config.num_warps
    if blocks not in ((64, 4), (128, 8), (192, 12), (256, 8)):
        known = "64 and 4, 128 and 8, 192 and 12, or 256 and 8"
        return f"block_n and num_warps are {blocks[0]} and {blocks[1]}; {known} are legal"
    if config.block_m not in LEGAL_BLOCK_M:
        return f"block_m is {config.block_m}; {', '.join(map(str, LEGAL_BLOCK_M))} are legal"
    if config.block_k not in (64, 128, 256):
        return f"block_k is {config.block_k}; 64, 128 and 256 are legal"
    if config.num_warps == 4 and not (config.block_m in (8, 16, 32) and reads_ahead(config, p)):
        tile = f"block_m is {config.block_m}, block_k {config.block_k} and b_dtype {p.b_dtype}"
        return f"{tile}; with a block_n of 64 block_m must be 8, 16 or 32, block_k 256 and b_dtype int4"
    if len(subtiles(config)) > 1 and (config.num_warps == 12 or config.block_k > 128):
        each = " + ".join(map(str, subtiles(config)))
        return f"block_m is {config.block_m}, {each}; several subtiles need 8 warps and block_k of at most 128"
    if config.split_tail > 1 and (not config.persistent or p.ragged or _cuts_tiles(config)):
        return f"split_tail is {config.split_tail}; only persistent programs whose tiles are otherwise whole take 2"
    if config.split_tail not in (1, 2) or (config.split_tail > 1 and len(subtiles(config)) > 1):
        return f"split_tail is {config.split_tail}; 1 and 2 are legal, and 1 where a tile has several subtiles"
    tight = config.split_tail > 1 and (p.block_scaled or p.b_dtype == "int4")
    if tight and (config.block_k > 64 or p.epilogue.bias or p.epilogue.c):
        return "split_tail is 2; with int4 or scale groups it needs block_k of 64, no bias and no C: registers"
    most = 2 if rescales(config, p) and config.num_warps == 8 else 1
    if stages_of_step(config, p) > most:
        least = p.group // most
        return f"block_k is {config.block_k}; scale groups, of {p.group} elements of K each, need at least {least} here"
    block = f"a tile of {config.block_m}x{config.block_n} leaves no registers"
    scaled = 2 * _scales(config) if rescales(config, p) else scale_groups(config, p) * (_sums(config) + _scales(config))
    if _sums(config) + scaled > _sum_registers(config, p):
        scales = " and for the scales of groups of K" if p.block_scaled else ""
        return f"{block} for the operands{scales}; fewer rows or columns do"
    if rescales(config, p) and _consumer_rows(config) > 64 and config.block_m > 64:
        return f"{block} for a scale group of weights; fewer rows or columns do"
    if config.block_n == 192 and config.block_m > 32 and (p.epilogue.c or (p.block_scaled and config.persistent)):
        return f"{block} to {'add C' if p.epilogue.c else 'add up parts of groups'}; 128 and 256 columns do"
    if len(subtiles(config)) > 2 and not _may_have_three(config, p):
        each = " + ".join(map(str, subtiles(config)))
        return (
            f"block_m is {config.block_m}, {each}; three subtiles leave registers only without C and groups of rows,"
            f" with split_k up to {MOST_SHARED_ROWS} rows, and with scale groups where the output's rows begin at"
            " multiples of 16 bytes"
        )
    return ""


def subtiles(config: Config) -> tuple[int, ...]:
    """The powers of two that add up to block_m, the larger one first: rows of activations of each wgmma."""
    bits = range(config.block_m.bit_length())
    return tuple(1 << bit for bit in reversed(bits) if config.block_m & 1 << bit)


def _may_have_three(config: Config, problem: Problem) -> bool:
    """True if a tile may have three subtiles: the kinds of products for which no such kernel spills."""
    p = problem
    aligned = p.out_alignment >= 16 and p.n * p.out_element_bytes % 16 == 0
    return (
        not p.ragged
        and not p.epilogue.c
        and (config.split_k == 1 or config.block_m <= MOST_SHARED_ROWS)
        and (aligned or not p.block_scaled)
    )


def scale_groups(config: Config, problem: Problem) -> int:
    """Scale groups of K in a step; 0 where groups have no scales."""
    return step_k(config, problem) // problem.group if problem.block_scaled else 0


def step_k(config: Config, problem: Problem) -> int:
    """Elements of K in a step: those of a stage, or the stages of a scale group."""
    return max(config.block_k, problem.group) if problem.block_scaled else config.block_k


def stages_of_step(config: Config, problem: Problem) -> int:
    """Stages of the pipeline that a step fills."""
    return step_k(config, problem) // config.block_k


def rescales(config: Config, problem: Problem) -> bool:
    """True if one accumulator is rescaled from group to group, which needs bf16; see `mainloop.py`.

    Where a thread has many sums it takes less time than totals (docs/notebook/mixed_input.md). With invariant
    accumulation, whose bits must not depend on the tile, sums are added to totals.
    """
    if not problem.block_scaled or problem.dtype != "bf16" or _has_four_blocks(config):
        return False
    totals = scale_groups(config, problem) * (_sums(config) + _scales(config))
    if _sums(config) + totals > _sum_registers(config, problem):
        return True
    return _sums(config) >= 64 and not problem.fixes_sums


def at_once(config: Config, problem: Problem) -> bool:
    """True if all weights of a step, or of a scale group, are converted before their wgmma; see `mainloop.py`.

    Where sums are rescaled, and where a consumer has the registers for a step of 8-bit weights (not in tiles of 256
    rows whose parts are added up), with so many rows that the tensor cores are what limits:
    docs/notebook/mixed_input.md.
    """
    roomy = config.block_n == 128 and config.block_k <= 128 and (config.block_m < 256 or config.split_k == 1)
    whole = not problem.block_scaled and problem.b_dtype != "int4" and config.block_m >= 128
    return rescales(config, problem) or (whole and roomy)


def reads_ahead(config: Config, problem: Problem) -> bool:
    """True if a consumer reads all weights of a step before it converts any of them; see `mainloop.py`.

    With it up to 64 rows by int4, in stages of 256 elements of K, take up to 8% less time. More rows and packed int8
    gain at most 3% and lose up to 7%: docs/notebook/mixed_input.md. Three consumers lack the registers.
    """
    few = config.block_k == 256 and config.block_m <= 64 and config.num_warps <= 8
    return problem.b_dtype == "int4" and few and not at_once(config, problem)


def ordered_mma(config: Config, problem: Problem) -> bool:
    """Whether consumers multiply in turn (`device/ordered_mma.py`): where they convert or scale beside, with so many
    rows that the tensor cores are what limits. Adding int8's sums to totals takes as long either way."""
    beside = at_once(config, problem) or (problem.block_scaled and problem.b_dtype == "int4")
    return beside and (config.block_m >= 128 or (config.block_m == 64 and reads_ahead(config, problem)))


def _sums(config: Config) -> int:
    """Registers of a thread for sums."""
    return config.block_m * _consumer_rows(config) // 128


def _has_four_blocks(config: Config) -> bool:
    """True if a consumer has four blocks of sums or more: several subtiles by 128 rows of weights."""
    return len(subtiles(config)) > 1 and _consumer_rows(config) > 64


def _scales(config: Config) -> int:
    """Registers of a thread for scales of a group."""
    return len(subtiles(config)) * _consumer_rows(config) // 32


def _sum_registers(config: Config, problem: Problem) -> int:
    """Registers of a thread that sums, totals and scales may take."""
    if config.num_warps == 12:
        return SUM_REGISTERS_OF_THREE_CONSUMERS
    if _has_four_blocks(config):
        return SUM_REGISTERS_OF_FOUR_BLOCKS
    return SUM_REGISTERS_WITH_ADDENDS if problem.epilogue.bias or problem.epilogue.c else SUM_REGISTERS


def shared_bytes(config: Config, problem: Problem, gpu: Gpu) -> int:
    """As `Family.shared_bytes`."""
    return _shared(config, problem)


def _shared(config: Config, problem: Problem) -> int:
    """Shared memory of one CTA in bytes: the pipeline, and a piece of each consumer's sums that changes layout."""
    return _pipeline_bytes(config, problem) + config.num_warps // 4 * _piece_bytes(config, problem)


def _pipeline_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of the pipeline and its barriers in bytes."""
    scales = scale_groups(config, problem) * config.block_n * 4  # in each stage of a step
    stage = config.step_bytes(problem) + scales
    return config.num_stages * stage + BARRIER_BYTES


def _piece_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of a piece in bytes: 8192, or half of it where few registers are left to write it, or where the
    pipeline takes the rest of the shared memory."""
    few = _has_four_blocks(config) or (problem.block_scaled and config.num_warps == 12)
    left = SM_SHARED_BYTES - RESERVED_BYTES - _pipeline_bytes(config, problem)
    return 4096 if few or left < config.num_warps // 4 * 8192 else 8192


def resident(config: Config, problem: Problem) -> int:
    """Programs that an SM holds, at most 2."""
    small = config.block_n <= 128 and config.block_m <= 32  # larger tiles need more than half of an SM's registers
    several = len(subtiles(config)) > 1 or (problem.epilogue.c and scale_groups(config, problem) > 1)
    if problem.block_scaled and several:
        small = False  # as do their sums and scales
    return 2 if small and 2 * (_shared(config, problem) + RESERVED_BYTES) <= SM_SHARED_BYTES else 1


def _crowded(config: Config, problem: Problem) -> bool:
    """True if two programs of two consumers each share an SM's registers."""
    return config.num_warps == 8 and resident(config, problem) == 2


def slice_k(config: Config, problem: Problem) -> int:
    """Elements of K that a consumer converts while it multiplies others.

    Longer slices wait less often (docs/notebook/mixed_input.md) and need registers: only 64 rows of weights leave them,
    by at most 128 rows of activations or where all is converted at once, unless two programs of two consumers share
    the SM. What is read ahead is converted in slices of 128. A slice is at most a scale group.
    """
    roomy = not _crowded(config, problem) and _consumer_rows(config) == 64
    roomy = roomy and (config.block_m <= 128 or at_once(config, problem))
    longest = 32 if not roomy else 128 if reads_ahead(config, problem) else 64
    return min(longest, problem.group) if problem.block_scaled else longest


def rounds_first(problem: Problem) -> bool:
    """True if sums are rounded before they change layout, which then moves half as many bytes: where no C is added, in
    fp32."""
    return problem.out_element_bytes == 2 and not problem.epilogue.c


def piece_cols(config: Config, problem: Problem) -> int:
    """Columns of a consumer's sums that are finished and written at a time.

    A thread has 16 words of them, or 8 where two programs of two consumers share an SM's registers.
    """
    element = 2 if rounds_first(problem) else 4
    programs = 2 if _crowded(config, problem) else 1
    return min(subtiles(config)[0], _piece_bytes(config, problem) // element // _consumer_rows(config) // programs)


def waiting_parts(config: Config) -> int:
    """Programs that share a tile and wait for each other; 1 where none wait."""
    return max(config.split_k, config.split_tail)


def column_pieces(config: Config, problem: Problem) -> tuple[int, ...]:
    """For each subtile, the number of pieces into which its columns are cut in tiles that programs share, a power of 2.

    Where the programs of a tile wait for each other, each has a piece or several if there are enough, of 8 columns or
    more. The last arriver adds up as many columns at a time as a thread has registers for: 32 elements of four parts.
    """
    parts = waiting_parts(config)
    if parts > 1:
        return tuple(min(1 << (parts - 1).bit_length(), subtile // 8) for subtile in subtiles(config))
    small = _consumer_rows(config) * config.block_m <= 4096 and config.num_warps == 8 and resident(config, problem) == 1
    return (1 if small and not problem.epilogue.c else config.block_m // piece_cols(config, problem),)


def _consumer_rows(config: Config) -> int:
    """Rows of weights of a consumer."""
    return config.block_n // (config.num_warps // 4)


def programs(config: Config, problem: Problem, gpu: Gpu, tiles: int) -> int:
    """Programs for so many tiles: split_k for each, or if persistent as many as the SMs hold."""
    if not config.persistent:
        return tiles * config.split_k
    parts = -(-problem.k // step_k(config, problem)) if _cuts_tiles(config) else config.split_tail
    return min(tiles * parts, gpu.sms * resident(config, problem))


def fixup(config: Config, programs: int, tiles: int) -> str:
    """How the parts of shared tiles are added, see `epilogue.py`: "reduce-scatter", "last-arriver", "exchange",
    "assist", or "" where no tile is shared."""
    if config.split_k > 1:
        return "reduce-scatter"
    if config.split_tail > 1:
        return "assist" if programs and 2 * (tiles % programs) > programs else "exchange"
    return "last-arriver" if programs and tiles % programs and _cuts_tiles(config) else ""


def rounds(config: Config, programs: int, tiles: int) -> int:
    """Rounds in which each program has a whole tile, before shares: equal ones of the remaining one to two rounds'
    tiles, or parts of the tiles that are less than a round."""
    how = fixup(config, programs, tiles)
    return 0 if how in ("", "reduce-scatter") else max(0, tiles // programs - (how == "last-arriver"))


def _cuts_tiles(config: Config) -> bool:
    """True if persistent programs may share tiles: the last arriver needs registers to add up parts. Groups' tiles are
    whole."""
    return _sums(config) <= 64 and len(subtiles(config)) == 1 and not isinstance(config.order, Grouped)


def assisted(programs: int, tiles: int) -> int:
    """The most tiles of the last round that a program without one assists, or 1 where two programs have halves."""
    tail = tiles % max(programs, 1)
    return -(-tail // (programs - tail)) if 2 * tail > programs else 1


def _second_steps(config: Config, problem: Problem, programs: int, tiles: int) -> int:
    """The steps of the second of two programs that split the K of a tile: a half, or as many as let it be done with all
    tiles that it assists when the first ones are done with theirs."""
    step = step_k(config, problem)
    count = assisted(programs, tiles)
    if count == 1:
        return -(-problem.k // step) - -(-problem.k // step) // 2
    return max(1, (problem.k + _ADD_K - count * _STORE_K) // (count + 1) // step)


def shared_work(config: Config, problem: Problem, programs: int, tiles: int) -> tuple[int, int]:
    """The K steps of all shared tiles, and the programs that share them, divided by their greatest common divisor; or
    the steps of the second of two programs that split the K of a tile, and 1."""
    if config.split_tail > 1:
        return _second_steps(config, problem, programs, tiles), 1
    steps = (tiles - rounds(config, programs, tiles) * programs) * -(-problem.k // step_k(config, problem))
    common = math.gcd(steps, programs) or 1
    return steps // common, programs // common


def _may_assist(config: Config, problem: Problem) -> bool:
    """True if programs without a tile may assist others: the kinds of products for which no such kernel spills."""
    p, blocks = problem, (config.block_m, config.block_n, config.block_k)
    scaled = p.block_scaled or (p.scales == "row" and p.b_dtype != "int4")
    roomy = blocks == (256, 128, 64) and config.num_stages > 2
    return roomy and scaled and p.dtype == p.out_dtype == "bf16" and p.epilogue == Epilogue()


def _share_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the programs cannot divide the steps of the tiles, or ""."""
    tiles = config.programs(problem)
    if tiles * config.split_k >= 2**31:
        return ""  # `Config.fits` says why not
    count = programs(config, problem, gpu, tiles)
    held = gpu.sms * resident(config, problem)
    if config.split_k > 1 and count > held:
        return f"split_k is {config.split_k}; {count} programs wait for each other, and {gpu.name} holds {held}"
    if problem.fixes_sums and fixup(config, count, tiles):
        return f"{count} programs share {tiles} tiles; with invariant accumulation one program sums all of K"
    if problem.fixes_sums and rescales(config, problem):
        return "sums are rescaled from group to group; with invariant accumulation they are added to totals"
    steps = -(-problem.k // step_k(config, problem))
    if config.split_tail > 1:
        tail = tiles % max(count, 1)
        if not tail or steps < 2:
            return f"split_tail is 2; the last round has {tail} tiles of {steps} steps of K for {count} programs"
        if fixup(config, count, tiles) == "assist" and not _may_assist(config, problem):
            return (
                f"split_tail is 2; the last round has {tail} tiles for {count} programs, so some add another's sums:"
                " only tiles of 256x128x64, with 3 stages or more, for bf16 by weights with scales (int4: of groups),"
                " without alpha, bias and C, leave registers for that"
            )
    shared_steps, _ = shared_work(config, problem, count, tiles) if fixup(config, count, tiles) else (0, 1)
    if max(shared_steps * count, -(-tiles // max(count, 1)) * steps) < 2**31:
        return ""
    return f"{tiles} tiles of {steps} steps of K are too many for {count} programs, which count them with 32 bits"
