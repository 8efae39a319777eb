"""What the compile gate compiles of 4-bit weights, see `compile_cases.py`."""

from dataclasses import replace

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families.mixed_input import model as streams
from tritonmm.problem import KINDS, Epilogue, Problem

TARGETS = ("a100", "rtx4090", "h200", "b200", "rtx5090", "mi300x", "mi355x")

PACKED = {(block_m, *rest) for block_m, blocks in streams.INT4_BLOCKS.items() for rest in blocks}
"""(block_m, block_n, block_k, num_stages, num_warps) of the mixed-input kernel for int4 that are chosen from."""


def packed_cases():
    """int4: every tile of the mixed-input kernel, with all kinds of scales, in turn with each meeting and with all that
    an epilogue may add; groups of 32 and 64; and the portable kernel for every target."""
    everything = Epilogue(scaled=True, bias=True, c=True)
    h200 = gpus.spec("h200")
    for i, blocks in enumerate(sorted(PACKED)):
        config = Config("mixed_input", *blocks, persistent=True, order=orders.RowMajor())
        meetings = config, replace(config, persistent=False), replace(config, split_k=2, persistent=False)
        for j, (n, fields) in enumerate((
            (4096, {"scales": "group"}),
            ((4096, {"dtype": "fp16", "scales": "row"}),
             (1001, {"dtype": "fp16", "scales": "group", "epilogue": everything}),
             (1001, {"scales": "group", "epilogue": everything}))[i % 3],
            ((4096, {"scales": "group-zero"}),
             (1001, {"dtype": "fp16", "scales": "group-zero", "epilogue": everything}))[i % 2],
        )):  # fmt: skip
            problem = Problem.dense(blocks[0], n, 4096, layout="nt", b_dtype="int4", **fields)
            legal = [meeting for meeting in (meetings[(i + j) % 3], *meetings) if meeting.fits(problem, h200)]
            if (halved := replace(config, split_tail=2)).fits(problem, h200):
                yield h200, problem, halved
            if legal:
                yield h200, problem, legal[0]
    for group, blocks in ((32, (16, 128, 64, 8, 8)), (64, (16, 128, 128, 7, 8)), (64, (64, 256, 64, 8, 8))):
        problem = replace(Problem.dense(16, 4096, 4096, layout="nt", b_dtype="int4", scales="group"), group=group)
        for scales in ("group", "group-zero"):
            config = Config("mixed_input", *blocks, persistent=True, order=orders.RowMajor())
            yield h200, replace(problem, scales=scales), config
    for gpu in map(gpus.spec, TARGETS):
        for kind in ("bf16-int4", "bf16-int4-row", "bf16-int4-zero", "bf16-int8p"):
            yield gpu, Problem.dense(70, 4096, 4096, layout="nt", **KINDS[kind]), Config("tile", 64, 64, 32, 3, 4)
