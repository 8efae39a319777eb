"""The portable kernel's configs worth trying, and how long they take, by `TiledModel`."""

from collections.abc import Iterator

from tritonmm.config import Config
from tritonmm.families.tile.rules import kind
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model import constants, element_loads
from tritonmm.model.time import Terms
from tritonmm.problem import Problem

NARROW_SHARE = {1: 1.0, 2: 1.0, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow.
For tensor cores: fp32 products are slow anyway. Loads of less than 4 bytes have limits of their own:"""

TRANSPOSED_SHARE = 0.3
"""What is left of that rate in tf32 where an operand does not lie along K, as wgmma needs it: eight products of
h200-mixed420.csv.gz."""


def by_element(problem: Problem) -> bool:
    """Whether alignment allows loads of one element at a time only."""
    return problem.alignment < 4


def spills(config: Config, problem: Problem) -> bool:
    """Whether a thread has too few registers for what it loads."""
    p = problem
    if p.ragged:
        return _spills_with_groups(config, p)
    return (
        by_element(p)
        and p.element_bytes == p.b_element_bytes < 4
        and not p.block_scaled
        and element_loads.spills(config, p.layout)
    )


def _spills_with_groups(config: Config, problem: Problem) -> bool:
    """`spills` beside the bounds of a group; limits found by compiling. Where few tiles are listed, all are tried."""
    p, threads = problem, config.num_warps * 32
    sums, loaded = config.block_m * config.block_n // threads, config.step_bytes(p) // threads
    begins_anywhere = p.ragged == "k" and p.layout != "tn"  # in lines along K
    by_element = begins_anywhere or min(p.alignment, p.out_alignment) < 16
    on_cuda_cores = p.dtype == "fp32" and p.precision == "ieee"
    if p.element_bytes == 1:  # the rules say what can be loaded where operands are not aligned
        most = (32, 32) if begins_anywhere else (64, 1024)
    else:
        most = (16, 48) if by_element else (16 if on_cuda_cores else 64, 1024)
    few = p.fixes_sums or p.precision.endswith("x3") or p.dtype == "fp64"
    return (sums > most[0] or loaded > most[1]) and not few


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the portable kernel adds to a config's time: its loads are as narrow as the alignment of the operands."""
    p = problem
    on_tensor_cores = p.element_bytes <= 2 or p.precision != "ieee"
    share = NARROW_SHARE[p.repacked(config.repack).alignment] if on_tensor_cores else 1.0
    share *= TRANSPOSED_SHARE if p.precision == "tf32" and p.layout != "nt" else 1.0
    loads_us = 0.0
    if by_element(p):
        loads_us = element_loads.loads_us(config, p, gpu, config.programs(p), constants.of(gpu).shared)
    return Terms(config.block_m, share, loads_us=loads_us)


def whole_groups(config: Config, problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Tiles whose step is a scale group: what invariant accumulation needs, also where elements are loaded one by one,
    of which the listed tiles with such steps load too many in a thread; and one for few rows of experts."""
    p = problem
    blocks = config.block_m, config.block_n, config.block_k
    few_rows = p.ragged and p.element_bytes != p.b_element_bytes and blocks == (16, 64, 128)
    if few_rows and p.block_scaled and p.group == 64:
        yield config.changed(block_k=p.group)
    listed = blocks == (64, 64, 64)
    # Other operands of fp8 that are not aligned are copied; groups are not.
    as_they_lie = by_element(p) and (p.dtype == "int8" or p.ragged)
    unlisted = p.element_bytes != p.b_element_bytes or as_they_lie
    if listed and p.fixes_sums and (p.block_scaled or (p.ragged and p.promotes)) and unlisted:
        yield config.changed(block_k=p.group, num_stages=2, num_warps=max(4, p.group // 8))


MODEL = TiledModel("tile", kind, terms, spills=spills, variants=whole_groups)
