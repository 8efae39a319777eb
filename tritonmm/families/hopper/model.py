"""The Hopper kernel's configs worth trying, and how long they take, by `TiledModel`."""

from collections.abc import Iterator

from tritonmm.config import Config
from tritonmm.families.hopper.boxes import BOX_ROWS, Boxes
from tritonmm.families.hopper.rules import HAS_CLUSTERS, consumer_grid
from tritonmm.families.hopper.sm_affinity import affinity
from tritonmm.families.tiled_model import TiledModel
from tritonmm.gpu import Gpu
from tritonmm.model.time import BEYOND, Terms, crossing
from tritonmm.problem import Problem

IN_PAIRS = (128, 256, 64)
"""The tile that is also tried in clusters of two, where the lines of both operands cross cache lines: SMs then receive
less than half of what they could, and a cluster asks for a third less. 32 products of 1000^3 take 108 us so, 129 in the
best tiles of one CTA, and torch 116 (H200, autotune/results/h200-pairs.csv). Elsewhere clusters gained too little: a
launch costs 1.25 us more (autotune/results/h200-clusters.csv)."""

CLUSTERS = 1.05
"""Caution with clusters: few GEMMs were measured with them."""


def kind(problem: Problem) -> str:
    """The list of tiles for operands of those dtypes: 16 bits, 8 bits, with scales of each group of K, and tf32."""
    p = problem
    if p.element_bytes != p.b_element_bytes:
        return ""
    if p.dtype == "fp32":
        return "tf32" if p.precision == "tf32" else ""
    return "grouped" if p.block_scaled else {1: "byte", 2: "half"}.get(p.element_bytes, "")


def terms(config: Config, problem: Problem, gpu: Gpu) -> Terms:
    """What the Hopper kernel adds to a config's time."""
    rows = config.cta_tile[0] // consumer_grid(config)[0]
    beyond = rows > problem.m > BOX_ROWS and Boxes.of(config, problem, False, False).rows_beyond(problem.m, rows) >= 8
    has_affinity = bool(affinity(config, problem, gpu))
    caution = (BEYOND if beyond else 1.0) * (CLUSTERS if config.cluster else 1.0)
    return Terms(rows, caution=caution, has_affinity=has_affinity)


def clusters(config: Config, problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Two of the config's tiles, one above the other, as one of a cluster of two CTAs that share B."""
    blocks = config.block_m, config.block_n, config.block_k
    if HAS_CLUSTERS and not problem.symmetric and blocks == IN_PAIRS and all(crossing(problem, config.repack)):
        yield config.changed(block_m=2 * config.block_m, cluster="m")


MODEL = TiledModel("hopper", kind, terms, split="split_tail", persistent=True, repacks=True, variants=clusters)
