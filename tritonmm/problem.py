"""What is asked: a matrix product as a value, with no tensors in it."""

from dataclasses import dataclass, replace

import torch

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
"""The dtypes by the short names used in configs, tables, suites and on the command line."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}

PRECISIONS = ("ieee", "tf32")


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype tritonmm multiplies. Raises NotImplementedError, as torch does, for the others."""
    try:
        return _NAMES[dtype]
    except KeyError:
        raise NotImplementedError(f"tritonmm multiplies {', '.join(map(str, _NAMES))}; got {dtype}") from None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a product before it is rounded: out = alpha * (A @ B) + bias + beta * C.

    scaled: alpha is not 1; bias: a vector of n is added to every row; c: a matrix of out's shape is added.
    """

    scaled: bool = False
    bias: bool = False
    c: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """`batch` products of an m x k by a k x n matrix.

    dtype, out_dtype: names from `DTYPES`; sums are taken in fp32.
    precision: how fp32 inputs are multiplied, "ieee" or "tf32"; "ieee" for the other dtypes.
    layout: a letter for A and one for B: "n" where the last dimension is contiguous in memory, "t"
        where the first is, "s" where neither is. torch.nn.Linear multiplies "nt".
    a_alignment, b_alignment: the largest power of two, at most 16, that divides in bytes the address,
        the stride between contiguous lines and the batch stride of A and of B; out_alignment: the same
        of the output, and of its row length, or one element where its rows are not contiguous. TMA
        needs 16.
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

    def __post_init__(self):
        if not self.out_dtype:
            object.__setattr__(self, "out_dtype", self.dtype)
        for name in ("m", "n", "k", "batch"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"Problem: {name} is {size!r}; it must be an integer >= 0")
        for name in ("dtype", "out_dtype"):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f"Problem: {name} is {getattr(self, name)!r}; it must be one of {', '.join(DTYPES)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"Problem: precision is {self.precision!r}; it must be one of {', '.join(PRECISIONS)}")
        if len(self.layout) != 2 or set(self.layout) - set("nts"):
            raise ValueError(f'Problem: layout is {self.layout!r}; it must be two letters of "n", "t", "s", as in "nt"')
        for name in ("a_alignment", "b_alignment", "out_alignment"):
            if getattr(self, name) not in (1, 2, 4, 8, 16):
                raise ValueError(f"Problem: {name} is {getattr(self, name)!r}; it must be 1, 2, 4, 8 or 16 bytes")

    @classmethod
    def of(
        cls,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        precision: str = "ieee",
        epilogue: Epilogue = Epilogue(),
    ) -> "Problem":
        """The problem out = a @ b, and then `epilogue`, of 2-D or 3-D tensors of equal batch."""
        return cls(
            m=a.shape[-2],
            n=b.shape[-1],
            k=a.shape[-1],
            batch=a.shape[0] if a.dim() == 3 else 1,
            dtype=dtype_name(a.dtype),
            out_dtype=dtype_name(out.dtype),
            precision=precision if a.dtype == torch.float32 else "ieee",
            layout=_layout(a) + _layout(b),
            a_alignment=_alignment(a),
            b_alignment=_alignment(b),
            out_alignment=_out_alignment(out),
            epilogue=epilogue,
        )

    @classmethod
    def dense(
        cls,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        dtype: str = "bf16",
        out_dtype: str = "",
        precision: str = "ieee",
        layout: str = "nn",
        epilogue: Epilogue = Epilogue(),
    ) -> "Problem":
        """The problem of operands that lie in memory without gaps, at an aligned address."""
        bare = cls(m, n, k, batch, dtype, out_dtype, precision, layout)
        a_line, b_line = k if layout[0] == "n" else m, n if layout[1] == "n" else k
        return replace(
            bare,
            a_alignment=_power_of_two(16 | a_line * bare.element_bytes),
            b_alignment=_power_of_two(16 | b_line * bare.element_bytes),
            out_alignment=_power_of_two(16 | n * bare.out_element_bytes),
            epilogue=epilogue,
        )

    @property
    def alignment(self) -> int:
        """The alignment of both operands."""
        return min(self.a_alignment, self.b_alignment)

    @property
    def unaligned(self) -> str:
        """The operands that TMA cannot address: "", "a", "b" or "ab"."""
        judged = zip("ab", self.layout, (self.a_alignment, self.b_alignment), strict=True)
        return "".join(name for name, letter, alignment in judged if letter == "s" or alignment < 16)

    def relaid(self, operands: str) -> "Problem":
        """The same product once those `operands`, of "a" and "b", have been copied to where TMA can address them.

        A copy keeps its operand's layout; one of "s" is gathered into "n".
        """
        if not operands:
            return self
        letters = (x.replace("s", "n") if name in operands else x for name, x in zip("ab", self.layout, strict=True))
        aligned = {f"{name}_alignment": 16 for name in operands}
        return replace(self, layout="".join(letters), **aligned)

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def out_element_bytes(self) -> int:
        return DTYPES[self.out_dtype].itemsize

    def operand_bytes(self, operands: str) -> int:
        """Bytes of those of "a" and "b" that are named."""
        sizes = {"a": self.m * self.k, "b": self.k * self.n}
        return self.batch * sum(sizes[name] for name in operands) * self.element_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross device memory: each input read once, the output written once."""
        return self.operand_bytes("ab") + self.batch * self.m * self.n * self.out_element_bytes

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch != 1 else ""
        dtype = self.dtype if self.out_dtype == self.dtype else f"{self.dtype}->{self.out_dtype}"
        dtype += " tf32" if self.precision == "tf32" else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.layout} {dtype}"


def _layout(x: torch.Tensor) -> str:
    rows, cols = x.stride(-2), x.stride(-1)
    if cols == 1 or x.shape[-1] == 1:
        return "n"
    return "t" if rows == 1 or x.shape[-2] == 1 else "s"


def _alignment(x: torch.Tensor) -> int:
    lead = x.stride(-1) if _layout(x) == "t" else x.stride(-2)
    spans = [x.data_ptr(), lead * x.itemsize]
    if x.dim() == 3 and x.shape[0] > 1:
        spans.append(x.stride(0) * x.itemsize)
    bits = 16
    for span in spans:
        bits |= span
    return _power_of_two(bits)


def _out_alignment(x: torch.Tensor) -> int:
    if _layout(x) != "n":
        return x.itemsize
    return _power_of_two(_alignment(x) | x.shape[-1] * x.itemsize)


def _power_of_two(bits: int) -> int:
    """The largest power of two that divides every term of an "or"."""
    return bits & -bits
