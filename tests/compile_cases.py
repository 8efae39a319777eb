"""What the compile gate compiles: (GPU, problem, config) of every kernel, and the tiles that tests of kernels share.

A compilation costs a second or two. So options that the compiler meets in different places take turns: each value of
one is met with each of another somewhere, not in every combination.
"""

import contextlib
import functools
import itertools
from dataclasses import replace

from compile_groups import expert_cases, grouped_cases
from compile_int4 import packed_cases
from compile_ozaki import ozaki_cases
from compile_persistent import persistent_cases
from compile_rows import attention_cases, quantize_rows_cases
from compile_weights import weights_cases
from pairs import all_pairs
from random_products import products, unsupported

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.autotune.studies.bank_conflicts import launch as transposes
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES
from tritonmm.families.exact.rules import HAS_FP64
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.selection import choose, timed

TARGETS = ("a100", "rtx3090", "rtx4090", "h200", "b200", "b300", "rtx5090", "mi300x", "mi355x")
"""A GPU of each architecture."""


def cases():
    """(gpu, problem, config): what `select` chooses for typical problems, for each target."""
    shapes = (4096, 4096, 4096, "nn"), (1000, 4096, 1000, "nt"), (17, 333, 77, "tn"), (1, 4096, 1, "tt")
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for dtype in ("bf16", "fp16", "fp32"):
            for m, n, k, layout in shapes if dtype != "fp16" else shapes[:1]:  # fp16 is bf16 in one instruction
                precision = "tf32" if dtype == "fp32" and layout == "nn" else "ieee"
                problem = Problem.dense(m, n, k, dtype=dtype, layout=layout, precision=precision)
                yield gpu, problem, choose(problem, gpu)
    for gpu in map(gpus.spec, ("rtx3090", "rtx4090", "b300", "rtx5090", "mi355x")):
        for m, n, k, layout in (*shapes, (1, 4096, 4096, "nt")):
            problem = Problem.dense(m, n, k, layout=layout)
            yield gpu, problem, choose(problem, gpu)
    h200 = gpus.spec("h200")
    problem = Problem(m=4000, n=4096, k=4096)
    for order in ("row-major", "split-merge:8", "swizzle-merge:16,8@n", "serpentine:8", "hilbert"):
        yield h200, problem, Config(block_n=256, persistent=True, order=orders.parse(order))
    for name, order in (
        ("mi300x", "dies:8,64/swizzle-merge:8"),
        ("mi300x", "dies:8/hilbert"),
        ("b200", "dies:2/serpentine:8@n"),
    ):
        gpu = gpus.spec(name)
        yield gpu, problem, choose(problem, gpu, "tile").ordered(orders.parse(order))


HOPPER = {
    # (block_m, block_n, block_k, num_stages, num_warps)
    (128, 256, 64, 4, 8), (256, 128, 64, 4, 8), (128, 128, 64, 6, 8), (128, 128, 128, 3, 8), (192, 128, 64, 5, 12),
    (128, 64, 64, 8, 4), (128, 64, 128, 4, 8), (128, 64, 128, 4, 4), (192, 64, 64, 6, 12), (64, 256, 64, 5, 8),
    (64, 160, 64, 7, 4), (64, 128, 64, 8, 4), (64, 96, 64, 8, 4), (128, 96, 64, 7, 8), (192, 96, 64, 5, 12),
    (128, 32, 64, 11, 4),
    (64, 128, 128, 4, 4), (64, 64, 64, 8, 4), (64, 64, 128, 6, 4), (192, 256, 64, 3, 12), (256, 192, 64, 3, 8),
    (192, 192, 64, 4, 12), (128, 192, 64, 5, 8), (128, 384, 64, 3, 8), (384, 128, 64, 3, 12), (64, 192, 64, 6, 4),
}  # fmt: skip


HOPPER_KINDS = {
    # what of other dtypes than bf16 and fp16 is multiplied: (block_m, block_n, bytes of K, num_stages, num_warps)
    "int8": {
        (128, 256, 128, 4, 8), (192, 256, 128, 3, 12), (256, 192, 128, 3, 8), (64, 256, 128, 5, 4), (64, 64, 128, 8, 4),
    },
    "tf32": {(128, 256, 128, 4, 8), (192, 256, 128, 3, 12), (64, 128, 128, 8, 4)},
    "fp8": {(128, 256, 128, 4, 8), (256, 192, 128, 3, 8), (64, 64, 128, 8, 4)},
    "fp8-row": {(128, 256, 128, 4, 8), (192, 256, 128, 3, 12)},
    "fp8-e5m2": {(128, 256, 128, 4, 8)},
    "fp8-ieee": {(128, 256, 128, 4, 8), (256, 128, 128, 4, 8)},
    "fp8-row-ieee": {
        (128, 256, 128, 4, 8), (256, 128, 128, 4, 8), (128, 128, 128, 6, 8), (192, 128, 128, 5, 12), (64, 64, 128, 8, 4)
    },
    "fp8-block": {
        (128, 256, 128, 4, 8), (256, 128, 128, 4, 8), (128, 128, 128, 6, 8), (192, 128, 128, 5, 12),
        (64, 128, 128, 8, 4), (64, 64, 128, 8, 4),
    },
}  # fmt: skip


CLUSTERS = {
    # (block_m, block_n, block_k, num_stages, num_warps, cluster), the blocks of both CTAs together
    (256, 256, 64, 4, 8, "m"), (256, 256, 64, 4, 8, "n"), (256, 128, 64, 6, 8, "m"), (128, 256, 64, 5, 8, "m"),
    (256, 128, 64, 4, 8, "n"), (128, 128, 64, 8, 4, "m"), (384, 128, 64, 5, 12, "m"), (384, 128, 64, 3, 12, "n"),
    (128, 384, 64, 4, 12, "n"),
}  # fmt: skip


def hopper_case(
    blocks=(128, 256, 64, 4, 8), cluster="", n=4096, order="swizzle-merge:8", split_k=1, split_tail=1, m=4000, **fields
):
    """(gpu, problem, config) of a typical product by the Hopper kernel."""
    out_alignment = 16 if n % 8 == 0 else 4 if fields.get("dtype") == "int8" else 2
    problem = Problem(m=m, n=n, k=4096, out_alignment=out_alignment, **fields)
    config = Config("hopper", *blocks, split_k, split_tail, True, orders.parse(order), cluster)
    return gpus.spec("h200"), problem, config


def chunk_cases():
    """Tiles that add the sums of chunks of a long K, whole and split."""
    for blocks in ((128, 192, 64, 5, 8), (192, 128, 64, 5, 12), (128, 128, 64, 6, 8), (64, 64, 128, 6, 4)):
        for epilogue, split_k in ((Epilogue(), 1), (Epilogue(True, True, True), 1), (Epilogue(), 4)):
            gpu, problem, config = hopper_case(blocks, split_k=split_k, layout="nt", epilogue=epilogue)
            problem = replace(problem, k=16_384, accumulation="invariant")
            if config.fits(problem, gpu):  # two N-subtiles are not split
                yield gpu, problem, config
    tf32 = Problem(4000, 4096, 16_384, layout="nt", dtype="fp32", precision="tf32", accumulation="invariant")
    yield gpus.spec("h200"), tf32, Config("hopper", 128, 128, 32, 6, 8, order=orders.parse("swizzle-merge:8"))


def hopper_cases():
    """Every tile, split where it can be, then every layout, dtype, epilogue and order of the largest."""
    case = hopper_case
    for blocks in sorted(HOPPER):
        yield case(blocks, layout="nt")
        gpu, problem, config = case(blocks, split_k=4)
        yield (gpu, problem, config) if config.fits(problem, gpu) else case(blocks)  # two N-subtiles are not split
    for blocks in (
        (128, 64, 64, 8, 4),
        (64, 160, 64, 7, 4),
        (192, 96, 64, 5, 12),
        (192, 64, 64, 6, 12),
        (128, 256, 64, 4, 8),
    ):
        for m in (100, 185, 257):  # last boxes, after others or alone, and shifts; of 4000 rows some come in boxes
            yield case(blocks, m=m, layout="nt", split_tail=1 + 2 * (blocks[1] == 256))
    for m in (20, 100):
        yield case((64, 64, 128, 6, 4), m=m, layout="nt")
    for i, blocks in enumerate(
        ((128, 64, 64, 8, 4), (128, 64, 128, 4, 4), (64, 64, 128, 6, 4), (64, 128, 64, 8, 8), (64, 256, 64, 5, 8))
    ):  # equal shares
        yield case(blocks, m=blocks[0] + 8, n=(1024, 1023)[i % 2], layout="nt")
        fields = {"batch": 3} if i % 2 else {"split_tail": 3, "out_dtype": "fp32"}
        yield case(blocks, m=blocks[0] + 31, n=1024, layout="nt", epilogue=Epilogue(scaled=True, bias=True), **fields)
    for blocks in ((64, 160, 64, 7, 4), (64, 192, 64, 6, 4), (64, 96, 64, 8, 4), (128, 96, 64, 7, 8)):
        yield case(blocks, m=72, n=1024, layout="nt", epilogue=Epilogue(scaled=True, bias=True))
    fields = {"order": "swizzle-merge:2", "epilogue": Epilogue(scaled=True, bias=True)}  # SM-assigned tiles
    yield case((64, 160, 64, 7, 4), m=40, n=16000, layout="nn", **fields)
    yield case((128, 64, 64, 8, 4), m=152, n=3201, layout="nt", **fields)
    for blocks in ((128, 256, 64, 4, 8), (192, 128, 64, 5, 12)):
        yield case(blocks, layout="tn")
    for blocks in ((256, 128, 64, 4, 8), (64, 256, 64, 5, 8)):
        yield case(blocks, layout="tt")
    everything = Epilogue(scaled=True, bias=True, c=True)
    yield case(dtype="fp16")
    yield case(out_dtype="fp32")
    yield case(epilogue=everything)
    yield case((256, 128, 64, 4, 8), epilogue=everything)
    for blocks in ((192, 256, 64, 3, 12), (256, 192, 64, 3, 8)):
        for more in ({"epilogue": Epilogue(scaled=True, bias=True)}, {"out_dtype": "fp32"}, {"order": "hilbert"}):
            yield case(blocks, layout="nt", **more)
    yield case(n=1023, layout="nt", out_dtype="fp32")
    yield case(n=1023, layout="nt", epilogue=everything)
    yield case(split_tail=8)
    yield case(split_tail=8, epilogue=everything)
    yield case(split_tail=8, n=1023, layout="nt", epilogue=everything)
    yield case(batch=3)
    for order in ("row-major", "column-major", "split-merge:8", "swizzle-merge:16,8@n", "serpentine:8", "hilbert"):
        yield case(order=order)


def kind_cases():
    """The Hopper kernel's tiles for operands of 1 and 4 bytes, with their scales; the tile kernel's on every target."""
    case = hopper_case
    for kind, tiles in HOPPER_KINDS.items():
        fields = {"layout": "nt"} | KINDS[kind]
        size = DTYPES[fields["dtype"]].itemsize
        for block_m, block_n, k_bytes, *rest in sorted(tiles):
            yield case((block_m, block_n, k_bytes // size, *rest), **fields)
    int8, fp8 = {"layout": "nt", "dtype": "int8"}, {"layout": "nt", "dtype": "fp8e4m3"}
    residues = {"batch": 15, "moduli": 15, **int8}
    for blocks in sorted(HOPPER_KINDS["int8"]):
        yield case(blocks, **residues)
    yield case((128, 256, 128, 4, 8), split_tail=4, **residues)
    yield case((128, 128, 128, 6, 8), split_k=2, **residues)
    for gpu in map(gpus.spec, ("a100", "rtx4090", "h200", "b200", "rtx5090", "mi300x")):
        problem = Problem(4096, 4096, 4096, **residues)
        yield gpu, problem, choose(problem, gpu, "tile")
    everything = Epilogue(scaled=True, bias=True, c=True)
    yield case((128, 256, 128, 4, 8), n=1023, **int8)
    yield case((128, 128, 128, 6, 8), split_k=4, **int8)
    yield case((128, 256, 128, 4, 8), scales="row", out_dtype="bf16", epilogue=Epilogue(bias=True), **int8)
    yield case((128, 256, 128, 4, 8), scales="row", precision="fast", out_dtype="fp32", epilogue=everything, **fp8)
    yield case((128, 256, 128, 4, 8), scales="tensor", precision="fast", n=1023, **fp8)
    for kind in ("int8", "fp8-row", "fp8-block"):
        yield case((64, 128, 128, 8, 4), m=80, n=1024, **{"layout": "nt"} | KINDS[kind])  # equal shares
    yield case((64, 64, 128, 8, 4), m=60, n=6400, **{"layout": "nt"} | KINDS["fp8-row"])  # SM-assigned tiles
    for scales in ("128x128*1x128", "1x128*1x128"):
        yield case((128, 128, 128, 6, 8), scales=scales, epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 128, 128, 6, 8), scales="1x128*128x128", n=1023, split_k=4, **fp8)
    for blocks in ((128, 256, 128, 4, 8), (256, 128, 128, 4, 8)):
        for scales in ("tensor", "row", "1x128*128x128"):
            yield case(blocks, scales=scales, split_tail=4, out_dtype="fp32", epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 128, 128, 6, 8), scales="tensor", n=1023, out_dtype="fp32", epilogue=Epilogue(bias=True), **fp8)
    yield case((128, 256, 32, 4, 8), layout="nt", dtype="fp32", precision="tf32", epilogue=everything)
    targets = [gpus.spec(name) for name in ("a100", "h200", "b200", "mi300x")]
    kinds = ("fp64", "tf32x3", "bf16x3", "int8", "fp8", "fp8-block", "bf16-int8")
    sizes = (4096, 4096, 4096, "nt"), (1001, 4095, 1001, "nn")
    for gpu, kind, (m, n, k, layout) in all_pairs(targets, kinds, sizes):
        problem = Problem.dense(m, n, k, layout=layout, **KINDS[kind])
        with contextlib.suppress(ValueError):  # no fp8e4m3 on the oldest, no tf32x3 on AMD
            yield gpu, problem, unrepacked(choose(problem, gpu, "tile"), problem, gpu)
    for layout, group, epilogue in (("nt", 128, Epilogue()), ("tn", 64, everything), ("ss", 128, everything)):
        problem = Problem(
            64, 4096, 4096, layout=layout, group=group, a_alignment=2, b_alignment=1, out_alignment=2,
            epilogue=epilogue, accumulation="invariant", **KINDS["bf16-int8"],
        )  # fmt: skip
        yield gpus.spec("h200"), problem, choose(problem, gpus.spec("h200"), "tile")
    for gpu, scales in zip(targets, ("1x128*1x128", "1x128*128x128", "128x128*1x128", "1x128*1x128"), strict=True):
        problem = Problem.dense(4096, 4096, 4096, layout="nt", dtype="int8", out_dtype="fp32", scales=scales)
        yield gpu, problem, choose(problem, gpu, "tile")


def unrepacked(config: Config, problem: Problem, gpu: gpus.Gpu) -> Config:
    """The config that reads operands where they lie, if it can."""
    there = replace(config, repack="")
    return there if there.fits(problem, gpu) else config


def cluster_cases():
    """The Hopper kernel's clusters: every tile, with all there is aligned and ragged in turn; the rest for the largest,
    layouts with either operand shared."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    for i, (*blocks, cluster) in enumerate(sorted(CLUSTERS)):
        yield hopper_case(blocks, cluster)
        gpu, problem, config = hopper_case(blocks, cluster, n=(4096, 1023)[i % 2], layout="nt", epilogue=everything)
        if not config.fits(problem, gpu):  # the tallest, and three consumers
            problem = replace(problem, epilogue=Epilogue())
        yield gpu, problem, config
    for cluster in ("m", "n"):
        for layout in ("nt", "tn", "tt"):
            yield hopper_case((256, 256, 64, 4, 8), cluster, layout=layout)
    for i, more in enumerate(
        ({"dtype": "fp16"}, {"out_dtype": "fp32"}, {"batch": 3}, {"order": "split-merge:8"}, {"order": "hilbert"})
    ):
        yield hopper_case((256, 256, 64, 4, 8), "mn"[i % 2], **more)


def repack_cases():
    """Copies of operands, all that the gate compiles of such plans: what multiplies them is among the others."""
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for k, repack, fields in (
            (4095, "ab", {}),
            (4095, "a", {"layout": "tt"}),
            (65, "a", {"dtype": "fp32"}),
            (4095, "b", {"layout": "ns"}),
            (4095, "b", {"dtype": "int8"}),
        ):
            problem = Problem(m=4095, n=4095, k=k, a_alignment=2, b_alignment=2, **fields)
            yield (
                gpu,
                problem.repacked("ab".replace(repack, "")),
                Config(block_m=64, block_n=64, block_k=32, repack=repack),
            )


def skinny_cases():
    """Typical decode steps on every target, every candidate for them on one, then layouts, dtypes and epilogues."""
    h200 = gpus.spec("h200")
    steps = [
        *((m, n, k, {}) for m, n, k in ((1, 4096, 4096), (4096, 1, 4096), (16, 4096, 4096), (64, 28672, 4096))),
        *((m, 4096, 4096, KINDS["bf16-int8-row"]) for m in (1, 24)),
        *((m, 4096, 4096, KINDS["bf16-int8p-row"]) for m in (1, 16, 64)),
    ]
    for m, n, k, fields in steps:
        problem = Problem.dense(m, n, k, layout="nt", **fields)
        for gpu in map(gpus.spec, ("a100", "b200", "mi300x")):
            yield gpu, problem, choose(problem, gpu, "skinny")
        for config in list(timed(problem, h200, "skinny"))[:12]:
            yield h200, problem, config
    for m in (1, 16, 24, 64):
        for kind in ("bf16-int8p", "bf16-fp8"):
            problem = Problem.dense(m, 4096, 4096, layout="nt", **KINDS[kind])
            for config in list(timed(problem, h200, "skinny"))[:12]:
                yield h200, problem, config
    for m in (1, 7, 100, 200):
        everything = Epilogue(scaled=True, bias=True, c=True)
        for fields in (
            {"layout": "nn"}, {"layout": "tn"}, {"dtype": "fp16", "batch": 3}, {"dtype": "fp32", "layout": "tt"},
            {"dtype": "fp32", "precision": "tf32"}, {"epilogue": everything}, {"out_dtype": "fp32"},
        ):  # fmt: skip
            problem = Problem.dense(m, 4096, 4096, **{"layout": "nt"} | fields)
            yield h200, problem, choose(problem, h200, "skinny")
        for kind, scales in (("bf16-int8", "group"), ("bf16-fp8", "row")):
            problem = Problem.dense(m, 4096, 4096, layout="nt", **KINDS[kind] | {"scales": scales})
            yield h200, problem, choose(problem, h200, "skinny")
        problem = Problem.dense(m, 4097, 4095, layout="nt", epilogue=everything)
        yield h200, problem, choose(problem, h200, "skinny")


SLICED = {
    # (block_m, block_n, block_k, num_stages, num_warps)
    "fp32": {(128, 128, 32, 2, 8), (64, 64, 16, 4, 2), (64, 64, 16, 3, 4)},
    "fp64": {(128, 64, 32, 4, 8), (64, 64, 16, 3, 4), (64, 32, 16, 4, 4)},
}


def exact_cases():
    """Every tile of the exact kernel: aligned in each way that its operands may lie, then ragged with all there is."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    h200 = gpus.spec("h200")
    for dtype, tiles in SLICED.items() if HAS_FP64 else [("fp32", SLICED["fp32"])]:
        for blocks in sorted(tiles):
            config = Config("exact", *blocks)
            for n, layout in ((4096, "nn"), (4096, "nt"), (4096, "tn"), (4096, "tt"), (4095, "nt")):
                yield h200, Problem.dense(4000, n, 4096, dtype=dtype, layout=layout), config
            ragged = (
                (1001, "nt", 1),
                (1001, "tn", 3),
                (1002, "nn", 1),
                (1001, "ss", 3),
                (1004, "nt", 1),
                (1004, "tn", 3),
            )
            for size, layout, split_k in ragged:
                fields = {"dtype": dtype, "layout": layout, "batch": 3, "epilogue": everything}
                problem = Problem.dense(4 * size, size, size, **fields)
                split = replace(config, split_k=split_k)
                if split.fits(problem, h200):  # not the largest, and fp64 not in parts
                    yield h200, problem, split


def transpose_cases():
    """(gpu, tile): every layout of shared memory, size of elements and kind of access, and other targets."""
    for elem_bytes in (1, 2, 4):
        widest = 16 // elem_bytes
        for layout in transposes.LAYOUTS:
            for vectors in ((widest, widest), (1, widest), (1, 1)):
                yield gpus.spec("h200"), transposes.TransposeTile(layout, elem_bytes, *vectors)
        for gpu in ("a100", "b200"):
            yield gpus.spec(gpu), transposes.TransposeTile("swizzled", elem_bytes, widest, widest)


SYMMETRIC = {
    # (block_m, block_n, block_k, num_stages, num_warps): one for each way that consumers divide the rows and columns
    (128, 256, 64, 4, 8), (128, 128, 64, 6, 8), (192, 192, 64, 4, 12), (192, 256, 64, 3, 12), (256, 192, 64, 3, 8),
    (192, 96, 64, 5, 12), (256, 128, 64, 4, 8), (128, 64, 64, 8, 4), (64, 256, 64, 5, 8), (64, 160, 64, 7, 4),
    (64, 64, 128, 6, 4), (64, 32, 128, 8, 4),
}  # fmt: skip


def symmetric_config(kernel, blocks, factor=8, **fields):
    """A config for symmetric products in these tiles."""
    return Config(kernel, *blocks, order=orders.Triangular(factor, aspect=blocks[:2]), **fields)


def symmetric_cases():
    """Symmetric products: tiles, epilogues, splits and dtypes of the Hopper kernel, and both others."""
    h200, everything = gpus.spec("h200"), Epilogue(scaled=True, bias=True, c=True)

    def case(kernel, blocks, n=4096, k=4096, kind="bf16", layout="nt", gpu=h200, split_tail=1, split_k=1, **fields):
        problem = Problem.dense(n, n, k, layout=layout, **KINDS[kind], **{"symmetric": "gram"} | fields)
        return gpu, problem, symmetric_config(kernel, blocks, split_tail=split_tail, split_k=split_k)

    for blocks in sorted(SYMMETRIC):
        yield case("hopper", blocks)
    largest = (128, 256, 64, 4, 8)
    yield case("hopper", largest, layout="tn", epilogue=everything, split_tail=8)
    yield case("hopper", largest, n=4095, epilogue=everything)
    yield case("hopper", (128, 128, 64, 6, 8), n=4095, batch=3, symmetric="known", layout="nt")
    yield case("hopper", largest, kind="bf16-fp32", split_k=4)
    yield case("hopper", (128, 256, 32, 4, 8), kind="tf32", epilogue=everything)
    yield case("hopper", (128, 192, 64, 5, 8), k=16_384, accumulation="invariant")
    for split_tail in (1, 8):
        yield case("hopper", largest, symmetric="output", epilogue=Epilogue(scaled=True, c=True), split_tail=split_tail)
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        yield case("tile", (64, 64, 32, 3, 4), kind="bf16", gpu=gpu)
        yield case("tile", (32, 32, 32, 3, 4), n=1001, kind="fp32", layout="tn", gpu=gpu)
    yield case("exact", (128, 128, 32, 2, 8), kind="fp32")
    yield case("exact", (64, 64, 16, 3, 4), n=1001, kind="fp32", epilogue=everything, split_k=4)
    if HAS_FP64:
        yield case("exact", (128, 64, 32, 4, 8), kind="fp64")
        yield case("exact", (64, 32, 16, 4, 4), n=1001, kind="fp64", layout="tn", epilogue=everything)


SEED, PRODUCTS = 20261126, 5
"""Random products that are compiled for each target: which, and how many. `compile_random.py` compiles more."""


def random_cases():
    """(gpu, product, config): what `select` chooses for random products of all kinds, others for each target.

    Not for AMD with Triton 3.6, whose ConvertToBufferOps fails on one of them: fp16 by fp8e5m2 with scales of groups.
    """
    some = products(SEED, 100)
    for gpu in map(gpus.spec, TARGETS):
        if not gpu.is_nvidia and gpus.TRITON.startswith("3.6."):
            continue
        legal = (product for product in some if not unsupported(product.problem, gpu))
        for product in itertools.islice(legal, PRODUCTS):
            yield gpu, product, choose(product.problem, gpu)


FAMILIES = {
    # What takes longest is first, so that no core waits for another at the end.
    "mixed-input": weights_cases, "int4": packed_cases, "hopper": hopper_cases, "kinds": kind_cases,
    "clusters": cluster_cases, "grouped": grouped_cases, "symmetric": symmetric_cases, "chunks": chunk_cases,
    "skinny": skinny_cases, "persistent": persistent_cases, "exact": exact_cases, "chosen": cases,
    "transpose": transpose_cases, "repack": repack_cases, "quantize-rows": quantize_rows_cases,
    "attention": attention_cases,
    "ozaki": ozaki_cases, "random": random_cases, "experts": expert_cases,
}  # fmt: skip
if not HAS_CLUSTERS:
    del FAMILIES["clusters"]


def share(family: str, part: int = 0, parts: int = 1) -> list[tuple]:
    """One of so many parts of a family's cases. Neighbours stay together: some of them compile the same kernel."""
    found = _all_of(family)
    return found[part * len(found) // parts : (part + 1) * len(found) // parts]


@functools.cache
def _all_of(family: str) -> list[tuple]:
    return list(FAMILIES[family]())
