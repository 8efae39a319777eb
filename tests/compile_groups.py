"""What the compile gate compiles of grouped products, see `compile_cases.py`."""

import itertools
from dataclasses import replace

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families.mixed_input import model as streams
from tritonmm.launch.groups import GroupTable
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.selection import choose

SCALED_GROUPS = (
    ("fp8-row", "m", "nt"), ("fp8-row-ieee", "m", "nt"), ("fp8-row", "k", "tn"), ("fp8-row-ieee", "k", "nt"),
    ("fp8-block", "m", "nt"),
)  # fmt: skip
"""Kind, what groups divide, and layout of grouped products with scales."""

EXPERTS = (
    ("bf16-int8", 128), ("bf16-int8p", 16), ("bf16-int8p-row", 128), ("bf16-fp8", 64), ("bf16-fp8-row", 128),
    ("bf16-int4", 128), ("bf16-int4", 32), ("bf16-int4-row", 128), ("bf16-int4-zero", 64), ("bf16-int4-zero", 32),
)  # fmt: skip
"""Kinds of 8- and 4-bit weights of groups of rows, and the elements of K that share a scale."""

INT8_ROW = {"dtype": "int8", "scales": "row", "out_dtype": "bf16"}

WARP_SPECIALIZED = (
    (KINDS["bf16"], "m", "nt", (128, 256, 64, 4), "groups/swizzle-merge:3", False),
    (KINDS["bf16"], "m", "nt", (256, 192, 64, 3, 12), "groups/swizzle-merge:3", False),
    (KINDS["bf16"], "m", "nn", (128, 192, 64, 4, 12), "groups/swizzle-merge:3", True),
    (KINDS["bf16"], "m", "nn", (128, 256, 64, 4), "largest-groups/row-major", True),
    (KINDS["bf16"], "m", "nt", (128, 128, 64, 6), "joined-groups/serpentine:3", True),
    (KINDS["bf16"], "m", "nt", (256, 128, 64, 4), "joined-largest-groups/swizzle-merge:4", False),
    (KINDS["fp16"], "m", "nn", (64, 128, 64, 8), "groups/swizzle-merge:4", False),
    (KINDS["fp16"], "m", "nt", (64, 256, 64, 4), "joined-groups/row-major", True),
    (KINDS["bf16-fp32"], "m", "nt", (128, 256, 64, 3), "groups/serpentine:2@n", True),
    (KINDS["fp8-row"], "m", "nt", (128, 256, 128, 4), "groups/swizzle-merge:3", True),
    (KINDS["fp8-row-ieee"], "m", "nt", (128, 128, 128, 6), "largest-groups/swizzle-merge:3", False),
    (INT8_ROW, "m", "nt", (256, 128, 128, 4), "joined-groups/swizzle-merge:3", True),
    (KINDS["int8"], "m", "nt", (64, 128, 128, 8), "groups/row-major", False),
    (KINDS["bf16"], "k", "tn", (256, 128, 64, 4), "largest-groups/swizzle-merge:3", False),
    (KINDS["fp16-fp32"], "k", "tn", (128, 256, 64, 3), "groups/row-major", True),
    (KINDS["bf16"], "k", "tn", (64, 128, 64, 8), "largest-groups/serpentine:3", True),
    (KINDS["bf16"], "k", "tn", (256, 192, 64, 3, 12), "largest-groups/serpentine:3", False),
)  # fmt: skip
"""What the grouped kernel for Hopper is compiled for: kind, what groups divide, layout, blocks and stages, order, and
whether there is a bias."""


ROWS_OF_GROUPS = (8, 16, 32, 64, 128, 256)
"""Rows of the mixed-input kernel's tiles that are chosen from for groups."""


def warp_specialized_cases():
    """The grouped kernel for Hopper: every tile, kind and order."""
    for kind, ragged, layout, blocks, order, bias in WARP_SPECIALIZED:
        fields = {"layout": layout, "epilogue": Epilogue(bias=bias), "ragged": ragged, "groups": 16}
        problem = Problem.dense(1000, 768, 528, **kind, **fields)
        yield gpus.spec("h200"), problem, Config("grouped", *blocks, order=orders.parse(order))


def grouped_cases():
    """What `select` chooses for groups of rows and of K, other tiles for Hopper, and the table of groups."""
    yield from warp_specialized_cases()
    epilogues = Epilogue(), Epilogue(bias=True)
    for gpu in map(gpus.spec, ("a100", "h200", "b200", "mi300x")):
        for kind in ("bf16", "fp32", "tf32", "fp64"):
            for i, (ragged, layout) in enumerate((("m", "nt"), ("k", "tn"), ("m", "tt"), ("k", "nt"))):
                m, n, k = (1000, 768, 520) if i < 2 else (999, 767, 521)
                fields = {"layout": layout, "epilogue": epilogues[i % 2], "ragged": ragged, "groups": 16}
                problem = Problem.dense(m, n, k, **KINDS[kind], **fields)
                yield gpu, problem, choose(problem, gpu, "tile")
        for kind, ragged, layout in SCALED_GROUPS if gpu.name in ("h200", "b200") else ():
            fields = {"layout": layout, "epilogue": epilogues[ragged == "k"], "ragged": ragged, "groups": 16}
            problem = Problem.dense(1000, 768, 528, **KINDS[kind], **fields)
            yield gpu, problem, choose(problem, gpu, "tile")
        for table in (
            GroupTable(8, 4096, 128, False),
            GroupTable(300, 4096, 64, True),
            GroupTable(4096, 99, 0, True),
        ):
            yield gpu, table


def warp_specialized_expert_cases():
    """The mixed-input kernel for Hopper: every tile that is chosen from for groups, with all scales in turn."""
    h200 = gpus.spec("h200")
    orders_of = (
        "groups/row-major",
        "groups/swizzle-merge:3",
        "joined-groups/swizzle-merge:2",
        "largest-groups/row-major",
    )
    for table, kinds in (
        (streams.BLOCKS, ("bf16-int8p", "bf16-int8p-row", "bf16-fp8", "bf16-fp8-row")),
        (streams.INT4_BLOCKS, ("bf16-int4", "bf16-int4-zero", "bf16-int4-row")),
    ):
        for i, (block_m, blocks) in enumerate((rows, each) for rows in ROWS_OF_GROUPS for each in table[rows]):
            fields = KINDS[kinds[i % len(kinds)]] | {"dtype": ("bf16", "fp16")[i // 2 % 2]}
            fields |= {"epilogue": Epilogue(bias=i % 3 == 0), "ragged": "m", "groups": 16}
            problem = Problem.dense(1000, (768, 767)[i % 2], 512, layout="nt", **fields)
            order = orders.parse(orders_of[i // 2 % 4])
            config = Config("mixed_input", block_m, *blocks, persistent=True, order=order)
            if config.fits(problem, h200):
                yield h200, problem, config
    for kind, group, blocks in (
        ("bf16-int8p", 64, (16, 128, 128, 4, 8)), ("bf16-int4", 64, (16, 128, 128, 7, 8)),
        ("bf16-int4-zero", 32, (16, 128, 64, 8, 8)), ("bf16-int4", 32, (64, 256, 64, 8, 8)),
    ):  # fmt: skip
        fields = KINDS[kind] | {"ragged": "m", "groups": 16}
        problem = replace(Problem.dense(1000, 768, 512, layout="nt", **fields), group=group)
        yield h200, problem, Config("mixed_input", *blocks, persistent=True, order=orders.parse("groups/row-major"))


def expert_cases():
    """Groups of rows by weights of 8 and 4 bits: what `select` chooses for few rows and for many, aligned and not."""
    targets = [gpus.spec(name) for name in ("a100", "rtx4090", "h200", "b200", "rtx5090", "mi300x", "mi355x")]
    for i, ((kind, group), gpu) in enumerate(itertools.product(EXPERTS, targets)):
        if "fp8" in kind and gpu.is_nvidia and gpu.capability < 89:
            continue
        for m in (32, 8192)[i % 2 :] if gpu.name == "h200" else ((32, 8192)[i % 2],):
            n, dtype = (768, "fp16") if i % 3 else (767, "bf16")
            fields = KINDS[kind] | {"dtype": dtype, "epilogue": Epilogue(bias=i % 2 == 0), "ragged": "m", "groups": 16}
            k = 512 if i % 4 or "int4" in kind or not kind.endswith("row") else 511
            problem = replace(Problem.dense(m, n, k, layout="nt", **fields), group=group)
            yield gpu, problem, choose(problem, gpu, "tile")
    yield from warp_specialized_expert_cases()
    for kind, group in EXPERTS:
        if not kind.endswith("zero"):
            fields = KINDS[kind] | {"accumulation": "invariant", "ragged": "m", "groups": 16}
            problem = replace(Problem.dense(100, 768, 512, layout="nt", **fields), group=group)
            yield gpus.spec("h200"), problem, choose(problem, gpus.spec("h200"), "tile")
