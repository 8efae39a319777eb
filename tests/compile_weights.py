"""What the compile gate compiles of 8-bit weights, see `compile_cases.py`."""

from dataclasses import replace

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families.mixed_input import model as streams
from tritonmm.problem import KINDS, Epilogue, Problem

WEIGHTS = {
    # (block_m, block_n, block_k, num_stages, num_warps): those that are chosen from, and what else is legal
    *((block_m, *rest) for block_m, blocks in streams.BLOCKS.items() for rest in blocks),
    (16, 192, 128, 6, 12), (16, 256, 128, 5, 8), (64, 128, 256, 3, 8), (128, 128, 128, 4, 8),
    (136, 128, 64, 7, 8), (200, 128, 64, 6, 8), (224, 128, 64, 5, 8),
}  # fmt: skip
ROUNDS = ((64, 256, 128, 4, 8), (128, 128, 128, 4, 8), (128, 192, 128, 3, 12), (256, 128, 64, 4, 8))
HALVED = ((256, 128, 64, 5, 8), (256, 128, 128, 2, 8), (128, 256, 128, 3, 8))
"""Tiles of which two programs may share one in the last round."""


def persistent(blocks, order, **fields):
    return Config("mixed_input", *blocks, persistent=True, order=order, **fields)


def weights_cases():
    """Every tile of the mixed-input kernel, with both kinds of scales, and with each meeting; the widest with all.
    Every other tile has int8 as it is, and the others packed int8."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    h200 = gpus.spec("h200")
    for i, blocks in enumerate(sorted(WEIGHTS)):
        config = persistent(blocks, orders.RowMajor())
        int8 = "int8p" if i % 2 else "int8"
        for j, (n, fields) in enumerate((
            (4096, {"b_dtype": int8, "scales": "row"}),
            (4096, {"b_dtype": "fp8e4m3", "scales": "group"}),
            ((1001, {"b_dtype": int8, "scales": "group", "epilogue": everything}),
             (1001, {"b_dtype": "fp8e5m2", "dtype": "fp16", "epilogue": everything}),
             (4096, {"b_dtype": int8, "dtype": "fp16", "out_dtype": "fp32", "scales": "row"}))[i % 3],
        )):  # fmt: skip
            problem = Problem.dense(blocks[0], n, 4096, layout="nt", **fields)
            meetings = config, replace(config, persistent=False), replace(config, split_k=2, persistent=False)
            legal = [(h200, problem, meeting) for meeting in meetings if meeting.fits(problem, h200)]
            yield from legal if j == i // 3 % 3 else legal[:1]
    for blocks in ROUNDS:
        for kind in ("bf16-int8p", "bf16-fp8-row"):
            problem = Problem.dense(2000, 28672, 4096, layout="nt", **KINDS[kind])
            config = persistent(blocks, orders.SwizzleMerge(8))
            if config.fits(problem, h200):
                yield h200, problem, config
    for blocks in HALVED:
        config = persistent(blocks, orders.SwizzleMerge(2), split_tail=2)
        for columns, fields in (
            (33, {"b_dtype": "int8", "scales": "group"}), (99, {"b_dtype": "int8p", "scales": "group"}),
            (99, {"b_dtype": "int8p", "scales": "row", "epilogue": everything}),
        ):  # fmt: skip
            problem = Problem.dense(2 * blocks[0], columns * blocks[1], 4096, layout="nt", **fields)
            if config.fits(problem, h200):
                yield h200, problem, config
    for stages in (3, 4, 5, 6):
        config = persistent((256, 128, 64, stages, 8), orders.SwizzleMerge(2), split_tail=2)
        kinds = [(b_dtype, scales) for b_dtype in ("int8", "int8p", "fp8e4m3", "int4") for scales in ("row", "group")]
        for i, (b_dtype, scales) in enumerate([*kinds, ("int4", "group-zero")]):  # programs assist each other
            m = (500, 512, 250)[(i + stages) % 3]
            fields = {"layout": "nt", "b_dtype": b_dtype, "scales": scales}
            problem = Problem.dense(m, 115 * 128 - 8 * (i % 2), 4096, **fields)
            if config.fits(problem, h200):
                yield h200, problem, config
    for i, blocks in enumerate((  # two groups in a step
        (16, 128, 128, 4, 8), (32, 192, 128, 5, 12), (64, 128, 128, 6, 8), (80, 128, 128, 5, 8), (128, 128, 128, 4, 8),
        (200, 128, 128, 3, 8), (256, 128, 128, 2, 8),
    )):  # fmt: skip
        b_dtype = ("int8", "int8p")[i % 2]
        problem = Problem.dense(blocks[0], 4096, 4096, layout="nt", b_dtype=b_dtype, scales="group")
        yield h200, replace(problem, group=64), persistent(blocks, orders.RowMajor())
    kinds = (("int8", "group"), ("int8p", "group"), ("fp8e4m3", "group"), ("int4", "group-zero"), ("int4", "group"))
    for i, rows in enumerate(streams.BLOCKS):  # groups of 32
        b_dtype, scales = kinds[i % 5]
        problem = Problem.dense(rows, 4096, 4096, layout="nt", b_dtype=b_dtype, scales=scales)
        problem = replace(problem, group=32)
        tried = (c for c in streams.candidates(problem, h200) if c.block_m == rows and c.fits(problem, h200))
        if config := next(tried, None):
            yield h200, problem, config
    for stages in (4, 5):  # parts of tiles of 256 rows, without scales
        problem = Problem.dense(256, 4096, 14336, layout="nt", b_dtype="int8")
        config = Config("mixed_input", 256, 128, 64, stages, 8, split_k=2, persistent=False, order=orders.RowMajor())
        yield h200, problem, config
    for rows in (200, 208, 224):  # several rows of tiles, of which the last begins earlier
        for kind in ("bf16-int8p", "bf16-fp8-row", "bf16-int4"):
            epilogue = Epilogue(scaled=True, bias=kind == "bf16-fp8-row")
            problem = Problem.dense(3 * rows - 5, 4096, 4096, layout="nt", epilogue=epilogue, **KINDS[kind])
            yield h200, problem, persistent((rows, 128, 128, 3, 8), orders.SwizzleMerge(2))
    for rows, split_k, kind, bias in (  # the same, and parts are added 32 columns at a time
        (136, 2, "bf16-int8p", False), (136, 1, "bf16-fp8-row", False), (144, 3, "bf16-int4", False),
        (144, 2, "bf16-fp8-row", True), (160, 2, "bf16-int4", False), (160, 1, "bf16-int8p", False),
        (192, 4, "bf16-int8", False), (192, 1, "bf16-int4", False), (200, 4, "bf16-int8p", False),
        (200, 2, "bf16-int4", True), (200, 3, "bf16-fp8-row", False), (72, 4, "bf16-int8", False),
        (208, 2, "bf16-int8p", True), (208, 3, "bf16-int4", False), (208, 4, "bf16-fp8", False),
    ):  # fmt: skip
        problem = Problem.dense(3 * rows - 5, 1024, 4096, layout="nt", epilogue=Epilogue(bias=bias), **KINDS[kind])
        config = persistent((rows, 128, 128, 3, 8), orders.SwizzleMerge(2))
        yield h200, problem, replace(config, split_k=split_k, persistent=split_k == 1)
    for order in ("split-merge:8", "swizzle-merge:16,8@n", "hilbert"):
        problem = Problem.dense(100, 4096, 4096, layout="nt", **KINDS["bf16-int8"])
        yield h200, problem, persistent((64, 128, 128, 6, 8), orders.parse(order))
