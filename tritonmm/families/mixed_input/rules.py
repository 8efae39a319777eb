"""What the mixed-input kernel can multiply, and into how many shares its steps are divided."""

import math

from tritonmm.config import Config
from tritonmm.families.common_rules import shared_memory_reason, single_cta_reason, tma_reason
from tritonmm.gpu import Gpu
from tritonmm.problem import FP8, HALF, Problem

ROWS = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 136, 144, 160, 192, 256)
"""Of the activations in a tile: powers of two, as tensors in registers have, and sums of two of them."""


def reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or ""."""
    return (
        _tile_reason(config, problem, gpu)
        or tma_reason(problem)
        or single_cta_reason(config)
        or shared_memory_reason(shared_bytes(config, problem), gpu)
        or _share_reason(config, problem, gpu)
    )


def _tile_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why a config is not legal, or "".

    B of a byte, the weights, and A, both with K contiguous and as TMA can address them.
    """
    p = problem
    if gpu.capability != 90:
        return f"the mixed-input kernel needs sm_90; {gpu.name} is {gpu.arch}"
    if p.dtype not in HALF or p.b_dtype not in ("int8", *FP8):
        return f"dtypes are {p.dtype} and {p.b_dtype}; the mixed-input kernel multiplies bf16 and fp16 by int8 and fp8"
    if p.layout != "nt":
        return f"layout is {p.layout}; the mixed-input kernel loads lines along K, as nt"
    if p.batch > 1:
        return f"batch is {p.batch}; the mixed-input kernel computes one product"
    if p.scales not in ("", "row", "group"):
        return f"scales are {p.scales}; the mixed-input kernel takes those of each row of the weights"
    if p.grouped and groups(config, p) not in (1, 2):
        return f"block_k is {config.block_k}; {p.group} elements of K share a scale, and a step has one or two"
    if config.split_tail != 1:
        return f"split_tail is {config.split_tail}; the mixed-input kernel splits all of its last tiles, or none"
    steps = -(-p.k // config.block_k)
    if config.persistent and config.split_k > 1:
        return f"split_k is {config.split_k}; persistent programs have equal shares, or whole tiles"
    if config.split_k > max(steps, 1):
        return f"split_k is {config.split_k}; there are {steps} steps of K"
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; the ring needs at least 2"
    blocks = config.block_n, config.num_warps
    if blocks not in ((128, 8), (192, 12), (256, 8)):
        return f"block_n and num_warps are {blocks[0]} and {blocks[1]}; 128 and 8, 192 and 12, or 256 and 8 are legal"
    if config.block_m not in ROWS:
        return f"block_m is {config.block_m}; {', '.join(map(str, ROWS))} are legal"
    if config.block_k not in (64, 128, 256):
        return f"block_k is {config.block_k}; 64, 128 and 256 are legal"
    if len(strips(config)) > 1 and (config.num_warps == 12 or config.block_k > 128):
        both = " and ".join(map(str, strips(config)))
        return f"block_m is {config.block_m}, {both}; 8 warps and steps of up to 128 leave registers for that"
    block = f"a block of {config.block_m}x{config.block_n} leaves no registers"
    scaled = 2 * _scales(config) if rescales(config, p) else groups(config, p) * (_sums(config) + _scales(config))
    if _sums(config) + scaled > _most(config, p):
        beside = " beside groups of K" if p.grouped else ""
        return f"{block} for the operands{beside}; fewer rows or columns do"
    if config.block_n == 192 and config.block_m > 32 and (p.epilogue.c or (p.grouped and config.persistent)):
        return f"{block} to {'add C' if p.epilogue.c else 'gather sums of groups'}; 128 and 256 columns do"
    return ""


def strips(config: Config) -> tuple[int, ...]:
    """The powers of two that add up to block_m, the larger one first: columns of sums of their own."""
    first = 1 << (config.block_m.bit_length() - 1)
    return (first, config.block_m - first) if config.block_m > first else (first,)


def groups(config: Config, problem: Problem) -> int:
    """Groups of K in a step that have scales of their own; 0 where no group has."""
    return config.block_k // problem.group if problem.grouped else 0


def rescales(config: Config, problem: Problem) -> bool:
    """Whether there is one accumulator, which is scaled from group to group: bf16 weights can take on powers of two.

    Where there are registers for totals, it takes 2 to 7% less time to add the sums of each group to them, and beside
    four blocks of sums 128 columns take less.
    """
    if not problem.grouped or problem.dtype != "bf16" or _many(config):
        return False
    return _sums(config) + groups(config, problem) * (_sums(config) + _scales(config)) > _most(config, problem)


def _sums(config: Config) -> int:
    """Registers of a thread for sums."""
    return config.block_m * _rows(config) // 128


def _many(config: Config) -> bool:
    """Whether a consumer has four blocks of sums, two strips of 128 rows of weights."""
    return len(strips(config)) > 1 and _rows(config) > 64


def _scales(config: Config) -> int:
    """Registers of a thread for scales of a group."""
    return len(strips(config)) * _rows(config) // 32


def _most(config: Config, problem: Problem) -> int:
    """Registers of a thread that sums, totals and scales may take."""
    if config.num_warps == 12:
        return 68
    if _many(config):
        return 140
    return 148 if problem.epilogue.bias or problem.epilogue.c else 164


def shared_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of one program: the ring, and a piece of each consumer's sums that changes layout."""
    stage = (config.block_m * problem.element_bytes + config.block_n) * config.block_k
    stage += groups(config, problem) * config.block_n * 4
    return config.num_stages * stage + config.num_warps // 4 * _piece_bytes(config, problem) + 1024  # and barriers


def _piece_bytes(config: Config, problem: Problem) -> int:
    """Shared memory for a piece: half as much for three consumers beside the scales of groups, and where four blocks of
    sums leave few registers to write it."""
    return 4096 if _many(config) or (problem.grouped and config.num_warps == 12) else 8192


def resident(config: Config, problem: Problem) -> int:
    """Programs that an SM holds, at most 2: of sm_90's 228 KiB, one is the system's for each."""
    small = config.block_n == 128 and config.block_m <= 32  # of others half of an SM's registers are too few
    if problem.grouped and (len(strips(config)) > 1 or (problem.epilogue.c and groups(config, problem) > 1)):
        small = False  # or their sums and scales take more
    return 2 if small and 2 * (shared_bytes(config, problem) + 1024) <= 228 * 1024 else 1


def slice_k(config: Config, problem: Problem) -> int:
    """Elements of K that a consumer converts while it multiplies others. Longer slices wait less often, which saves 1
    to 6% (autotune/results/h200-weights-slices.csv), and take registers that only 64 rows of weights of a program alone
    on its SM leave, beside 128 columns at most."""
    roomy = resident(config, problem) == 1 and _rows(config) == 64 and config.block_m <= 128
    return 64 if roomy else 32


def piece_cols(config: Config, problem: Problem) -> int:
    """Columns of a consumer's sums that are finished and written at a time: 16 elements a thread, or 8, as two programs
    that share an SM's registers have."""
    return min(config.block_m, _piece_bytes(config, problem) // 4 // _rows(config) // resident(config, problem))


def gathered_cols(config: Config, problem: Problem) -> int:
    """Columns that are added up at a time: all, if there are registers for 32 elements a thread of four parts."""
    small = _rows(config) * config.block_m <= 4096 and config.num_warps == 8 and resident(config, problem) == 1
    return config.block_m if small and not problem.epilogue.c else piece_cols(config, problem)


def share_cols(config: Config, problem: Problem) -> int:
    """Columns that each of a tile's programs adds up at a time: its share, in powers of two that divide the tile's."""
    share = -(-config.block_m // config.split_k)
    return min(piece_cols(config, problem), max(8, 1 << (share - 1).bit_length()), strips(config)[-1])


def _rows(config: Config) -> int:
    """Rows of weights of a consumer."""
    return config.block_n // (config.num_warps // 4)


def programs(config: Config, problem: Problem, gpu: Gpu, tiles: int) -> int:
    """Programs that divide so many tiles: split_k for each, or persistent ones, as many as the SMs hold."""
    if not config.persistent:
        return tiles * config.split_k
    most = tiles * -(-problem.k // config.block_k) if _meets(config) else tiles
    return min(most, gpu.sms * resident(config, problem))


def meeting(config: Config, programs: int, tiles: int) -> str:
    """How programs that share a tile add it up, `Streaming.meeting`: "share", "gather", or "" where none do."""
    if config.split_k > 1:
        return "share"
    return "gather" if programs and tiles % programs and _meets(config) else ""


def rounds(config: Config, programs: int, tiles: int) -> int:
    """Rounds in which each program has a whole tile before its share, which is of one to two rounds' tiles."""
    return max(0, tiles // programs - 1) if meeting(config, programs, tiles) == "gather" else 0


def _meets(config: Config) -> bool:
    """Whether persistent programs may share tiles, which takes registers."""
    return _sums(config) <= 64 and len(strips(config)) == 1


def share(config: Config, problem: Problem, programs: int, tiles: int) -> tuple[int, int]:
    """The steps of those of so many tiles that are shared, and the programs that share them, in lowest terms."""
    steps = (tiles - rounds(config, programs, tiles) * programs) * -(-problem.k // config.block_k)
    common = math.gcd(steps, programs) or 1
    return steps // common, programs // common


def _share_reason(config: Config, problem: Problem, gpu: Gpu) -> str:
    """Why the kernel cannot share the steps of the tiles, or ""."""
    tiles = config.programs(problem)
    if tiles * config.split_k >= 2**31:
        return ""  # for every family, `Config.fits` says why not
    count = programs(config, problem, gpu, tiles)
    held = gpu.sms * resident(config, problem)
    if config.split_k > 1 and count > held:
        return f"split_k is {config.split_k}; {count} programs wait for each other, and {gpu.name} holds {held}"
    steps = -(-problem.k // config.block_k)
    shared_steps, _ = share(config, problem, count, tiles) if meeting(config, count, tiles) else (0, 1)
    if max(shared_steps * count, -(-tiles // max(count, 1)) * steps) < 2**31:
        return ""
    return f"{tiles} tiles of {steps} steps of K are too many for {count} programs, which count them with 32 bits"
