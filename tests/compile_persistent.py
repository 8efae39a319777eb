"""What the compile gate compiles of the persistent kernel."""

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

PERSISTENT = {
    (128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (256, 128, 64, 3, 8), (128, 128, 64, 4, 8), (128, 128, 64, 3, 4),
    (128, 64, 64, 4, 4), (256, 64, 32, 4, 8), (128, 128, 128, 2, 8), (64, 128, 64, 4, 4), (64, 256, 64, 4, 4),
    (64, 64, 128, 3, 4),
}  # fmt: skip


def persistent_cases():
    """Every tile of the persistent kernel, then layouts, dtypes, epilogues and orders, on both of its targets."""
    for gpu in map(gpus.spec, ("h200", "b200")):

        def case(blocks=(128, 256, 64, 3, 8), n=4096, order="swizzle-merge:8", gpu=gpu, **fields):
            block_m, block_n, block_k, num_stages, num_warps = blocks
            problem = Problem(m=4000, n=n, k=4096, out_alignment=16 if n % 8 == 0 else 2, **fields)
            config = Config(
                "persistent", block_m, block_n, block_k, num_stages, num_warps,
                persistent=True, order=orders.parse(order),
            )  # fmt: skip
            return gpu, problem, config

        for blocks in sorted(PERSISTENT):
            if blocks[0] > 64 or gpu.capability == 90:
                yield case(blocks)
        for layout in ("nt", "tn"):
            yield case(layout=layout)
        everything = Epilogue(scaled=True, bias=True, c=True)
        yield case(dtype="fp16", batch=3)
        yield case(epilogue=everything)
        yield case(layout="tt", out_dtype="fp32", epilogue=everything)
        yield case(n=1023, layout="nt", out_dtype="fp32")
        yield case((128, 128, 64, 4, 8), n=1023, layout="nt", epilogue=everything)
        for order in ("split-merge:8", "swizzle-merge:16,8@n", "hilbert"):
            yield case(order=order)
