"""What is computed: a GEMM as a value, without tensors."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch

from tritonmm.alignment import alignment_of, layout_of, out_alignment_of, power_of_two
from tritonmm.dtypes import (
    BYTES,
    DTYPES,
    FLOATS,
    FP8,
    HALF,
    PACKED,
    PRECISIONS,
    SCALE_GROUPS,
    any_name,
    default_output,
    dtypes_reason,
    has_precision,
    precision_of,
    precisions_of,
    short_name,
    stored_k,
)
from tritonmm.moduli import moduli_of, planes_reason, precision_reason
from tritonmm.scales import FORMER_SCALES, GROUPED_SCALES, SCALES

_SCALED: dict[str, Any] = {"dtype": "fp8e4m3", "scales": "tensor"}

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"dtype": name} for name in (*FLOATS, "int8")},
    **{name: {"dtype": "fp32", "precision": name} for name in PRECISIONS["fp32"][1:4]},
    "bf16-fp32": {"dtype": "bf16", "out_dtype": "fp32"},
    "fp16-fp32": {"dtype": "fp16", "out_dtype": "fp32"},
    "fp8": _SCALED | {"precision": "fast"},
    "fp8-row": _SCALED | {"precision": "fast", "scales": "row"},
    "fp8-ieee": _SCALED,
    "fp8-row-ieee": _SCALED | {"scales": "row"},
    "fp8-block": _SCALED | {"scales": "1x128*128x128"},
    "fp8-e5m2": _SCALED | {"precision": "fast", "b_dtype": "fp8e5m2"},
    "bf16-int8": {"dtype": "bf16", "b_dtype": "int8", "scales": "group"},
    "bf16-fp8": {"dtype": "bf16", "b_dtype": "fp8e4m3", "scales": "group"},
    "bf16-int8-row": {"dtype": "bf16", "b_dtype": "int8", "scales": "row"},
    "bf16-fp8-row": {"dtype": "bf16", "b_dtype": "fp8e4m3", "scales": "row"},
    "bf16-int8p": {"dtype": "bf16", "b_dtype": "int8p", "scales": "group"},
    "bf16-int8p-row": {"dtype": "bf16", "b_dtype": "int8p", "scales": "row"},
    "bf16-int4": {"dtype": "bf16", "b_dtype": "int4", "scales": "group"},
    "bf16-int4-row": {"dtype": "bf16", "b_dtype": "int4", "scales": "row"},
    "bf16-int4-zero": {"dtype": "bf16", "b_dtype": "int4", "scales": "group-zero"},
}
"""Kinds of GEMMs, in one word as suites and the command line spell them, and the fields of a `Problem` for each.

fp8 has e4m3 operands with one scale each and is summed fast; -row: scales of rows; -block: of 1x128 blocks of A and
128x128 blocks of B;
-ieee: summed accurately; -e5m2: by that B. bf16-int8, -int8p, -fp8 and -int4 have weights with scales of 128 elements
of K, -row: one for each row of the weights, a column of B; -zero: with a zero point in each scale.
"""

ACCUMULATIONS = ("any", "invariant")
"""What may be required of the order in which the products of an output element are summed, see `Problem`."""

SYMMETRIES = ("gram", "known", "output")
"""Why a product is symmetric, see `Problem`."""

RAGGED = ("m", "k")
"""What groups may divide, see `Problem`."""

MOST_GROUPS = 4096
"""Groups whose bounds the threads of one program hold in registers, 16 each."""


def kind_name(dtype: str | torch.dtype) -> str:
    """The name in `KINDS` of a kind or of a dtype in any of torch's spellings. torch.float8_e4m3fn stands for "fp8".

    Raises ValueError for anything else.
    """
    name = short_name(dtype)
    name = "fp8" if name == "fp8e4m3" else name
    if name not in KINDS:
        raise ValueError(
            f"dtype is {str(dtype)!r}; it must be one of {', '.join(KINDS)}, or torch's name for it, such as bfloat16"
        )
    return name


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens before the output is rounded: out = alpha * (A @ B) + bias + beta * C.

    scaled: alpha is not 1. bias: a vector of n elements is added to every row. c: a matrix of out's shape is added.
    """

    scaled: bool = False
    bias: bool = False
    c: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A GEMM, without tensors: `batch` times an m x k by a k x n matrix.

    m, n, k, batch: sizes; 0 is allowed.
    dtype, out_dtype: of A and of the output: names in `DTYPES`, or torch's. out_dtype is by default the dtype, int32
        for int8, and bf16 for fp8. Accumulation is in fp32, for int8 in int32, and for fp64 in fp64.
    b_dtype: of B where it differs from A's: the other kind of fp8, or int8, int4 or fp8 weights with bf16 or fp16.
        int8p, packed int8, and int4 are stored along K, as `nn/int8.py` and `nn/int4.py` say: see `b_rows`.
    precision: how fp32 operands are multiplied: "ieee", "tf32" (reduced to 10 bits), or as three GEMMs of parts of the
        operands, "tf32x3" or "bf16x3"; and fp64, too, by exact int8 products: "ozaki", "ozaki:N" for N moduli, or
        "ozaki:safe", which falls back to "ieee" (docs/ozaki.md). For fp8, "fast" accumulates as tensor cores do, with
        13 bits on sm_90, and "ieee" adds the sums of 128 elements of K in fp32. "ieee" for all other dtypes.
    scales: what each fp32 scale of the operands applies to; "" for none. "tensor": one for A and one for B. "row": one
        for each row of A and each column of B. "1x128*1x128", "1x128*128x128" and "128x128*1x128": one for each block
        of A, and for each block of B, named as in torch.nn.functional.ScalingType: 1x128 is one row of A, or column of
        B, by 128 elements of K; 128x128 is 128 rows or columns by 128 elements of K. Weights of 8 and 4 bits, where A
        has no scales: "row", or "group" for one for each `group` elements of K of each column of B; "group-zero" for
        the same of int4, with the code of the weight 0 in the last 4 bits of each scale: see `nn/int4.py`.
    group: elements of K that share a scale: 16, 32, 64 or 128 for "group" and "group-zero", else 128.
    layout: a letter for A and one for B: "n" if its last dimension is contiguous, "t" if the one before is, "s" if
        neither is. torch.nn.Linear multiplies "nt".
    a_alignment, b_alignment: in bytes, the largest power of two up to 16 that divides the address, the stride between
        contiguous lines, and the batch stride. TMA needs 16.
    out_alignment: the same of the output, and of the bytes of its rows; one element if its rows are not contiguous.
    epilogue: what is added and scaled before the output is rounded, see `Epilogue`.
    accumulation: what is required of the order in which the products of an output element are summed. "any": the same
        bits from run to run. "invariant": bits that depend on the element's row of A, its column of B, its scales and
        addends, K, the dtypes and the epilogue alone, not on m, n, batch, layout, alignment or config:
        docs/accumulation.md.
    symmetric: why A @ B is symmetric; "" if it need not be. "gram": B is A transposed, in the same memory. "known": the
        caller says so. "output": the same, and so is C. Then only the elements on and below the diagonal are computed,
        in a triangular order, and each of the others is the one opposite. With a bias, or a C that need not be
        symmetric, neither need the output be: each element has addends of its own.

    ragged, groups: what is divided among how many groups; "" and 0 if nothing is. "m": the rows of A and of the output,
        each group of which is multiplied by its own of `groups` matrices B. "k": K, so that each group has its own of
        `groups` outputs. m and k are those of all groups together. How many each has is known to the device alone, and
        some may belong to none.

    moduli: 0, or N for int8 products of residues: batch i is reduced modulo `moduli.MODULI`[i % N], to int8.

    Immutable and hashable. Raises ValueError, naming the field, for values that no GEMM has.

    >>> problem = tritonmm.Problem.dense(4096, 1000, 14336, layout="nt")
    >>> print(problem)
    4096x1000x14336 nt bf16
    >>> problem.out_alignment, problem.flops
    (16, 117440512000)
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    out_dtype: str = ""
    precision: str = "ieee"
    layout: str = "nn"
    a_alignment: int = 16
    b_alignment: int = 16
    out_alignment: int = 16
    epilogue: Epilogue = Epilogue()
    b_dtype: str = ""
    scales: str = ""
    group: int = 128
    accumulation: str = "any"
    symmetric: str = ""
    ragged: str = ""
    groups: int = 0
    moduli: int = 0

    def __post_init__(self):
        for name in ("dtype", "b_dtype", "out_dtype"):
            object.__setattr__(self, name, short_name(getattr(self, name) or ""))
        if not self.b_dtype:
            object.__setattr__(self, "b_dtype", self.dtype)
        if not self.out_dtype:
            object.__setattr__(self, "out_dtype", "int8" if self.moduli else default_output(self.dtype))
        for name in ("m", "n", "k", "batch", "groups", "moduli"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"Problem: {name} is {size!r}; it must be an integer >= 0")
        for name in ("dtype", "b_dtype", "out_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"Problem: {name} is {getattr(self, name)!r}; it must be one of {', '.join(DTYPES)}")
        reason = planes_reason(self) if self.moduli else dtypes_reason(self.dtype, self.b_dtype, self.out_dtype)
        if reason:
            raise ValueError(f"Problem: {reason}")
        if not has_precision(self.dtype, self.precision):
            known = precisions_of(self.dtype)
            raise ValueError(f"Problem: precision is {self.precision!r}; for {self.dtype} it must be one of {known}")
        former = FORMER_SCALES.get(self.scales, self.scales)
        object.__setattr__(self, "scales", "group" if self.scales == "1x1" and self.dtype in HALF else former)
        if self.scales not in SCALES:
            raise ValueError(f"Problem: scales is {self.scales!r}; it must be one of {', '.join(SCALES[1:])}, or ''")
        if self.scales == "group-zero" and self.b_dtype != "int4":
            raise ValueError(f"Problem: scales is 'group-zero' and b_dtype {self.b_dtype!r}; int4 has zero points")
        if self.group not in SCALE_GROUPS:
            raise ValueError(f"Problem: group is {self.group!r}; it must be one of {SCALE_GROUPS}: elements of K")
        if self.b_dtype == "int4" and self.group == 16:
            raise ValueError("Problem: group is 16 and b_dtype int4, which is packed 32 elements of K at a time")
        if len(self.layout) != 2 or set(self.layout) - set("nts"):
            raise ValueError(f'Problem: layout is {self.layout!r}; it must be two letters of "n", "t", "s", as in "nt"')
        if self.b_dtype == "int8p" and self.layout[1] != "t" and self.n > 1:
            raise ValueError(f"Problem: layout is {self.layout!r} and b_dtype int8p, which is contiguous along K: 'nt'")
        for name in ("a_alignment", "b_alignment", "out_alignment"):
            if getattr(self, name) not in (1, 2, 4, 8, 16):
                raise ValueError(f"Problem: {name} is {getattr(self, name)!r}; it must be 1, 2, 4, 8 or 16 bytes")
        if self.accumulation not in ACCUMULATIONS:
            known = " or ".join(ACCUMULATIONS)
            raise ValueError(f"Problem: accumulation is {self.accumulation!r}; it must be {known}")
        if self.symmetric and (reason := self._symmetry_reason()):
            raise ValueError(f"Problem: {reason}")
        if (self.ragged or self.groups) and (reason := self._groups_reason()):
            raise ValueError(f"Problem: {reason}")
        if self.ozaki and (reason := precision_reason(self)):
            raise ValueError(f"Problem: {reason}")

    def _groups_reason(self) -> str:
        """Why such a product has no groups, or ""."""
        if self.ragged not in RAGGED:
            return f"ragged is {self.ragged!r}; of {self.groups} groups it must be {' or '.join(RAGGED)}"
        if not 0 < self.groups <= MOST_GROUPS:
            return f"groups is {self.groups}; they divide {self.ragged}, so there must be 1 to {MOST_GROUPS}"
        if self.b_dtype in PACKED and self.ragged == "k":
            return f"b_dtype is {self.b_dtype}; where groups divide k there are no packed weights"
        if self.batch != 1:
            return f"batch is {self.batch}; with groups it must be 1"
        if self.symmetric:
            return f"symmetric is {self.symmetric!r}; with groups it must be ''"
        if self.epilogue.scaled or self.epilogue.c:
            return f"epilogue is {self.epilogue}; a grouped product has no alpha and no C"
        if self.scales.startswith("group") and self.dtype == self.b_dtype:
            return f"scales is {self.scales!r} and the dtype {self.dtype}; weights of 8 and 4 bits have such scales"
        if self.scales not in (known := GROUPED_SCALES[self.ragged]):
            return (
                f"scales is {self.scales!r}; where groups divide {self.ragged} it can be {', '.join(map(repr, known))}"
            )
        return ""

    def _symmetry_reason(self) -> str:
        """Why such a product is not symmetric, or ""."""
        if self.symmetric not in SYMMETRIES:
            return f"symmetric is {self.symmetric!r}; it must be {', '.join(SYMMETRIES)} or ''"
        if self.m != self.n:
            return f"m, n are {self.m}, {self.n}; a symmetric product is square"
        if not self.may_be_symmetric:
            return f"dtypes are {self.dtype} and {self.b_dtype}; of a symmetric product both are one of {FLOATS}"
        return ""

    @classmethod
    def of(
        cls,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        precision: str = "ieee",
        epilogue: Epilogue = Epilogue(),
        scales: str = "",
        group: int = 128,
        accumulation: str = "any",
        symmetric: str = "",
        ragged: str = "",
    ) -> "Problem":
        """The problem out = a @ b of tensors, all 2-D or all 3-D, with `epilogue`. Where groups divide m, b alone is
        3-D, and where they divide k, out is.

        Raises NotImplementedError for dtypes that are not in `DTYPES`.

        >>> a, b = torch.empty(64, 32), torch.empty(48, 32).t()
        >>> print(tritonmm.Problem.of(a, b, torch.empty(64, 48), precision="tf32"))
        64x48x32 nt fp32 tf32
        """
        dtype, b_dtype, out_dtype = map(any_name, (a.dtype, b.dtype, out.dtype))
        return cls(
            m=a.shape[-2],
            n=b.shape[-1],
            k=a.shape[-1],
            batch=a.shape[0] if a.dim() == 3 else 1,
            ragged=ragged,
            groups={"m": b, "k": out}[ragged].shape[0] if ragged else 0,
            dtype=dtype,
            b_dtype=b_dtype,
            out_dtype=out_dtype,
            precision=precision_of(dtype, precision),
            scales=scales,
            group=group,
            layout=layout_of(a) + layout_of(b),
            a_alignment=alignment_of(a),
            b_alignment=alignment_of(b),
            out_alignment=out_alignment_of(out),
            epilogue=epilogue,
            accumulation=accumulation,
            symmetric=symmetric,
        )

    @classmethod
    def dense(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str | torch.dtype = "bf16",
        out_dtype: str | torch.dtype = "",
        precision: str = "ieee",
        layout: str = "nn",
        epilogue: Epilogue = Epilogue(),
        b_dtype: str | torch.dtype = "",
        scales: str = "",
        accumulation: str = "any",
        symmetric: str = "",
        ragged: str = "",
        groups: int = 0,
    ) -> "Problem":
        """The problem of operands that are dense in memory, at an aligned address.

        >>> print(tritonmm.Problem.dense(64, 48, 32, dtype=torch.float16, out_dtype="fp32", batch=2))
        2x64x48x32 nn fp16->fp32
        """
        dtype, b_dtype, out_dtype = map(short_name, (dtype, b_dtype, out_dtype))
        bare = cls(m, n, k, batch, dtype, out_dtype, precision, layout, b_dtype=b_dtype, scales=scales)
        a_line, b_line = k if layout[0] == "n" else m, n if layout[1] == "n" else bare.b_rows
        b_bytes = DTYPES[bare.b_dtype].itemsize
        return replace(
            bare,
            a_alignment=power_of_two(16 | a_line * bare.element_bytes),
            b_alignment=power_of_two(16 | b_line * b_bytes),
            out_alignment=power_of_two(16 | n * bare.out_element_bytes),
            epilogue=epilogue,
            accumulation=accumulation,
            symmetric=symmetric,
            ragged=ragged,
            groups=groups,
        )

    @property
    def alignment(self) -> int:
        """The smaller alignment of the two operands, in bytes."""
        return min(self.a_alignment, self.b_alignment)

    @property
    def k_major(self) -> bool:
        """True if wgmma takes these dtypes only with K as the contiguous dimension of both operands."""
        return self.element_bytes == 1 or self.precision == "tf32"

    @property
    def ozaki(self) -> int:
        """Moduli of precision "ozaki"; 0 for other precisions."""
        return moduli_of(self.dtype, self.precision)

    @property
    def block_scaled(self) -> bool:
        """Whether each group of K has scales of its own."""
        return self.scales not in ("", "tensor", "row")

    @property
    def rows_per_scale(self) -> int:
        """Rows of A that share the scale of a group of K."""
        return 128 if self.scales == "128x128*1x128" else 1

    @property
    def cols_per_scale(self) -> int:
        """Columns of B that share the scale of a group of K."""
        return 128 if self.scales == "1x128*128x128" else 1

    @property
    def scale_shapes(self) -> tuple[tuple[int, int] | None, tuple[int, int]]:
        """Shapes of the scales: A's as (rows, scale groups), None for a 2-byte A; B's as (scale groups, columns).

        Where groups divide m, each has scale groups of its own B, one after the other. Where they divide k, each is a
        scale group.
        """
        if self.ragged == "k":
            return (self.m, self.groups), (self.groups, self.n)
        groups = -(-self.k // self.group) if self.block_scaled else 1
        rows = 1 if self.scales == "tensor" else -(-self.m // self.rows_per_scale)
        cols = 1 if self.scales == "tensor" else -(-self.n // self.cols_per_scale)
        return None if self.dtype in HALF else (rows, groups), (max(1, self.groups) * groups, cols)

    @property
    def may_be_symmetric(self) -> bool:
        """Whether there are symmetric products of such operands."""
        return self.m == self.n and self.dtype == self.b_dtype and self.dtype in FLOATS and not self.ragged

    @property
    def mirrors_output(self) -> bool:
        """Whether all of the output is symmetric, with what is added to a symmetric product."""
        adds = self.epilogue.bias or (self.epilogue.c and self.symmetric != "output")
        return bool(self.symmetric) and not adds

    @property
    def promotes(self) -> bool:
        """Whether partial sums of K are added outside of the tensor cores (two-level accumulation)."""
        return self.block_scaled or (self.dtype in FP8 and self.precision == "ieee")

    @property
    def fixes_sums(self) -> bool:
        """Whether the order of a sum is fixed. Sums of integers are exact in any order, and empty ones have none."""
        exact = (self.sum_dtype == "int32" and not self.block_scaled) or self.ozaki
        return self.accumulation == "invariant" and not exact and self.k > 0

    @property
    def unaligned(self) -> str:
        """The operands that TMA cannot load as they are stored: "", "a", "b" or "ab"."""
        wrong = ("st", "sn") if self.k_major else ("s", "s")
        judged = zip("ab", self.layout, wrong, (self.a_alignment, self.b_alignment), strict=True)
        return "".join(name for name, letter, bad, alignment in judged if letter in bad or alignment < 16)

    def repacked(self, operands: str) -> "Problem":
        """The same GEMM once `operands`, of "a" and "b", have been copied to where TMA can address them.

        A copy keeps its operand's layout, except that "s" becomes "n". Where `k_major`, a copy is contiguous along K.
        """
        if not operands:
            return self
        copied = "nt" if self.k_major else self.layout.replace("s", "n")
        letters = (y if name in operands else x for name, x, y in zip("ab", self.layout, copied, strict=True))
        aligned: dict[str, Any] = {f"{name}_alignment": 16 for name in operands}
        return replace(self, layout="".join(letters), **aligned)

    @property
    def kind(self) -> str:
        """The name in `KINDS` of the dtypes, precision and scales; all of them joined by "-" if they have no name."""
        return _kinds().get(self._terms) or "-".join(filter(None, self._terms))

    @property
    def _terms(self) -> tuple[str, ...]:
        return self.dtype, self.b_dtype, self.out_dtype, self.precision, self.scales

    @property
    def sum_dtype(self) -> str:
        """Dtype of the sums."""
        return {"int8": "int32", "fp64": "fp64"}.get(self.dtype, "fp32")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of A."""
        return int(BYTES[self.dtype])

    @property
    def b_element_bytes(self) -> float:
        """Bytes of one element of B: of int4 half a byte."""
        return BYTES[self.b_dtype]

    @property
    def b_rows(self) -> int:
        """Rows of B as a tensor: K, or fewer where its elements are packed, see `dtypes.PACKED`."""
        return stored_k(self.b_dtype, self.k)

    @property
    def out_element_bytes(self) -> int:
        """Bytes of one element of the output."""
        return int(BYTES[self.out_dtype])

    def operand_bytes(self, operands: str) -> int:
        """Bytes of the named operands: "a", "b" or "ab"."""
        a_bytes = self.m * self.k * self.element_bytes if "a" in operands else 0
        b_bytes = self.n * self.b_rows * DTYPES[self.b_dtype].itemsize if "b" in operands else 0
        return self.batch * (a_bytes + b_bytes * (self.groups if self.ragged == "m" else 1))

    @property
    def distinct_operand_bytes(self) -> int:
        """Bytes of the operands, of the one that both are where B is A transposed."""
        return self.operand_bytes("a" if self.symmetric == "gram" else "ab")

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        outputs = self.batch * (self.groups if self.ragged == "k" else 1)
        return outputs * self.m * self.n * self.out_element_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations, two for each multiply-add, also of elements that symmetry spares."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross device memory: each operand read once, the output written once."""
        return self.distinct_operand_bytes + self.output_bytes

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch != 1 else ""
        dtype = self.dtype if self.b_dtype == self.dtype else f"{self.dtype}*{self.b_dtype}"
        dtype += f"->{self.out_dtype}" if self.out_dtype != default_output(self.dtype) and not self.moduli else ""
        dtype += f" {self.precision}" if self.precision != "ieee" else ""
        dtype += f" {self.scales} scales" if self.scales else ""
        dtype += " invariant" if self.accumulation == "invariant" else ""
        dtype += {"gram": " gram", "known": " symmetric", "output": " symmetric with C"}.get(self.symmetric, "")
        dtype += f" {self.groups} groups of {self.ragged}" if self.ragged else ""
        dtype += f" modulo {self.moduli}" if self.moduli else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.layout} {dtype}"


@functools.cache
def _kinds() -> dict[tuple[str, ...], str]:
    return {Problem(1, 1, 1, **fields)._terms: name for name, fields in KINDS.items()}
