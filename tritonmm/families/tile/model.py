"""The portable kernel's configs worth trying, and how long they take, by `TiledModel`."""

from tritonmm.config import Config
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import Limits, Terms, Tile, elements_us
from tritonmm.problem import Problem

LIMITS = Limits(stream=1.07, sm_bandwidth=286e9, l2_bandwidth=34e12, crossed=2.65, overlap=1.27, caution=1.15)

NARROW_SHARE = {1: 1.0, 2: 1.0, 4: 0.5, 8: 0.8, 16: 1.0}
"""What is left of the tile kernel's rate where operands are aligned to so many bytes only: its loads are that narrow.
For tensor cores: fp32 products are slow anyway. Loads of less than 4 bytes have limits of their own:"""

TRANSPOSED_SHARE = 0.3
"""What is left of that rate in tf32 where an operand does not lie along K, as wgmma needs it: eight products of
h200-mixed420.csv."""

MOST_VALUES = 128
"""Such elements of a step and sums that a thread has registers for; with more it spills."""

MOST_ELEMENTS = 80
"""The same of the elements alone where K is the contiguous dimension of both operands: ptxas then spills a thousand
bytes of kernels that spill nothing in the other layouts."""

_HALF = (
    Tile((128, 256, 64), 3, 8, 1.03, 1.91),
    Tile((256, 128, 64), 3, 8, 0.83, 2.00),
    Tile((128, 128, 64), 4, 8, 0.86, 1.18),
    Tile((128, 128, 32), 3, 8, 0.39, 0.66),
    Tile((128, 64, 64), 4, 4, 0.67, 0.66),
    Tile((64, 128, 64), 4, 4, 0.74, 0.62),
    Tile((64, 64, 64), 4, 4, 0.46, 0.29),
    Tile((64, 64, 32), 3, 4, 0.26, 0.18),
    Tile((32, 64, 128), 4, 4, 0.174, 0.21),
    Tile((16, 64, 128), 4, 4, 0.109, 0.07),
    Tile((16, 32, 128), 5, 2, 0.063, 0.03),
    Tile((32, 32, 32), 2, 4, 0.089, 0.06),
)
_FP32 = (
    Tile((128, 128, 16), 4, 8, 0.28, 1.0),
    Tile((128, 64, 16), 4, 8, 0.19, 0.5),
    Tile((64, 64, 16), 4, 4, 0.15, 0.5),
    Tile((32, 64, 32), 3, 4, 0.10, 0.5),
    Tile((32, 32, 32), 3, 4, 0.06, 0.5),
    Tile((16, 32, 16), 4, 2, 0.035, 0.5),
)
_BYTE = (
    Tile((128, 128, 128), 3, 8, 0.50, 1.0),
    Tile((128, 128, 64), 4, 8, 0.45, 1.0),
    Tile((128, 64, 64), 4, 8, 0.35, 0.5),
    Tile((64, 128, 128), 4, 4, 0.40, 0.5),
    Tile((64, 64, 128), 4, 4, 0.28, 0.5),
    Tile((64, 64, 64), 4, 4, 0.25, 0.5),
    Tile((32, 64, 128), 4, 4, 0.15, 0.5),
    Tile((32, 64, 64), 4, 4, 0.13, 0.5),
    Tile((16, 64, 64), 4, 4, 0.08, 0.5),
    Tile((64, 64, 32), 3, 4, 0.20, 0.5),
    Tile((32, 32, 32), 2, 4, 0.04, 0.5),
)
_TF32 = (
    Tile((128, 128, 32), 4, 8, 0.60, 1.0),
    Tile((64, 128, 32), 4, 4, 0.40, 0.5),
    Tile((64, 64, 32), 4, 4, 0.30, 0.5),
)
_THREE_PRODUCTS = (
    Tile((128, 128, 32), 3, 8, 0.60, 1.0),
    Tile((64, 128, 32), 3, 8, 0.45, 0.5),
    Tile((64, 64, 32), 3, 4, 0.40, 0.5),
    Tile((64, 64, 32), 3, 8, 0.35, 0.5),
    Tile((32, 32, 32), 3, 4, 0.12, 0.5),
)
_FP64 = (
    Tile((128, 64, 16), 3, 8, 0.75, 0.5),
    Tile((64, 64, 16), 3, 4, 0.70, 0.5),
    Tile((32, 64, 16), 3, 4, 0.45, 0.5),
    Tile((32, 32, 16), 3, 4, 0.30, 0.5),
    Tile((16, 32, 16), 3, 2, 0.15, 0.5),
)
_MIXED = (  # B is of another size than A
    Tile((128, 128, 64), 3, 8, 0.45, 1.0),
    Tile((64, 128, 64), 4, 8, 0.35, 0.5),
    Tile((64, 64, 64), 4, 4, 0.28, 0.5),
    Tile((32, 64, 128), 4, 4, 0.20, 0.5),
    Tile((16, 64, 128), 4, 4, 0.12, 0.5),
    Tile((64, 64, 32), 3, 4, 0.20, 0.5),
    Tile((16, 32, 32), 4, 2, 0.06, 0.5),
    Tile((16, 32, 16), 4, 2, 0.04, 0.5),
)


def tiles(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that are tried for operands of those dtypes."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return _MIXED
    if p.dtype == "fp32":
        return {"ieee": _FP32, "tf32": _TF32 + _FP32}.get(p.precision, _THREE_PRODUCTS)
    found = {1: _BYTE, 2: _HALF, 8: _FP64}[p.element_bytes]
    return found if p.grouped or p.alignment >= 4 else tuple(t for t in found if not _spills(t, p.layout))


def _spills(tile: Tile, layout: str) -> bool:
    """Whether the tile kernel has no registers for the addresses where each element is loaded by itself: 57x10385x5735
    takes 1568 us in tiles of 128 x 64 x 64 then, and 179 in 64 x 64 x 64 (autotune/results/h200-random66.csv)."""
    block_m, block_n, block_k = tile.blocks
    threads = 32 * tile.num_warps
    elements, sums = (block_m + block_n) * block_k, block_m * block_n
    return elements + sums > MOST_VALUES * threads or (layout == "nt" and elements > MOST_ELEMENTS * threads)


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the portable kernel adds to a config's time: its loads are as narrow as the alignment of the operands."""
    p = problem
    on_tensor_cores = p.element_bytes <= 2 or p.precision != "ieee"
    share = NARROW_SHARE[p.repacked(config.repack).alignment] if on_tensor_cores else 1.0
    share *= TRANSPOSED_SHARE if p.precision == "tf32" and p.layout != "nt" else 1.0
    tiles_m, tiles_n = config.tiles(p)
    loads_us = elements_us(config, p, gpu, tiles_m * tiles_n * p.batch) if p.alignment < 4 else 0.0
    return Terms(config.block_m, share, loads_us=loads_us)


MODEL = TiledModel("tile", LIMITS, tiles, terms)
