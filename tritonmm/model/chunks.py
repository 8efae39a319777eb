"""Chunks of K: what one chain of tensor-core steps sums where K is long and accumulation is invariant.

Tensor cores sum a short K in one chain. A long K is cut into chunks of a fixed length, each summed from zero, and fp32
adds these sums in the order of K. So as many programs may share a tile whose K is long, with the same bits as one
program that adds chunk after chunk, and a chain is never so long that much of its sum is cut away.

Chunks depend on K and the dtypes alone. The figures behind the constants: docs/notebook/invariant.md.
"""

from tritonmm.dtypes import HALF
from tritonmm.problem import Problem

CHUNK_K = 4096
"""Chunks have a multiple of this many elements of K."""

CHUNKED_K = 16_384
"""The smallest K that has chunks."""

MOST_CHUNKS = 32


def chunk_k(problem: Problem) -> int:
    """Elements of K in a chunk; 0 where tensor cores sum all of K, or nothing is required of sums.

    Only operands that a single chain would sum have chunks: bf16, fp16, tf32 and fast fp8 without scales of groups.
    """
    in_one = (problem.b_dtype in HALF or problem.precision in ("tf32", "fast")) and not problem.promotes
    if not problem.fixes_sums or not in_one or problem.k < CHUNKED_K:
        return 0
    return CHUNK_K * -(-problem.k // (CHUNK_K * MOST_CHUNKS))


def chunks(problem: Problem) -> int:
    """Chunks of K; 1 where it is not cut."""
    length = chunk_k(problem)
    return -(-problem.k // length) if length else 1
