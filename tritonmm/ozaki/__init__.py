"""fp32 and fp64 products by exact int8 products: Ozaki scheme II.

1. `quantize` scales each row of A and each column of B by a power of two to integers, and takes their residues modulo N
   coprime moduli: N planes of int8 (`scaling`, `norms_kernel`, `residues_kernel`).
2. A kernel family multiplies the planes in one launch, as a batch: `Problem.moduli`. Sums are exact in int32 and
   reduced by the modulus of their plane.
3. `reconstruct` recombines the N residues of an element to an integer by the Chinese remainder theorem, and rounds it
   once (`crt`, `reconstruct_kernel`). Elements of rows and columns with an infinity or NaN are those of IEEE
   (`nonfinite_kernel`).

`rule` says when that is proved to be as accurate as a native product: elements are counted while they are quantized,
and one program looks at the counts (`rule_kernel`, `decide`).

An element of the result is a function of its row of A, its column of B, N and the dtype alone: all sums are of
integers. `panels` bounds the memory of the planes.

Sources: Ozaki, Uchino, Imamura, arXiv 2504.08009; GEMMul8, arXiv 2508.03984.
"""
