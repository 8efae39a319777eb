"""What the compile gate compiles of grouped products, see `compile_cases.py`."""

from tritonmm import gpu as gpus
from tritonmm.launch.groups import GroupTable
from tritonmm.problem import KINDS, Epilogue, Problem
from tritonmm.selection import choose

SCALED_GROUPS = (
    ("fp8-row", "m", "nt"), ("fp8-row-ieee", "m", "nt"), ("fp8-row", "k", "tn"), ("fp8-row-ieee", "k", "nt"),
    ("fp8-block", "m", "nt"),
)  # fmt: skip
"""Kind, what groups divide, and layout of grouped products with scales."""


def grouped_cases():
    """What `select` chooses for groups of rows and of K, and the table of groups."""
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
