"""Dtypes: their short names, which are multiplied with which, and how."""

import torch

from tritonmm.moduli import DEFAULT_MODULI, FEWEST_MODULI, MODULI, SAFE, moduli_of

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int8": torch.int8,
    "int8p": torch.int16,
    "int4": torch.uint8,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
    "int32": torch.int32,
}
"""torch's dtypes by the short names used in configs, tables, suites and on the command line. int32 is for outputs
only. int8p, packed int8, and int4 are for weights only: see `PACKED`."""

BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"int8p": 1, "int4": 0.5}
"""Bytes of an element. Faster than dtype.itemsize."""

PACKED = {"int8p": (16, 8), "int4": (32, 16)}
"""Weights that are packed along K, in the order in which tensor cores read them: (a, b) if a weights are packed
together in b elements of the tensor that kernels read. See `nn/int8.py` and `nn/int4.py`."""

SCALE_GROUPS = (16, 32, 64, 128)
"""Elements of K that may share a scale of weights. int4 is packed 32 elements at a time, so the first is not for it."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_SPELLINGS = {str(dtype).removeprefix("torch."): name for name, dtype in DTYPES.items() if name not in PACKED}
_SPELLINGS |= {"half": "fp16", "float": "fp32", "double": "fp64", "int": "int32"}
"""Short names by torch's spellings, without "torch."."""

FLOATS = ("bf16", "fp16", "fp32", "fp64")
"""Dtypes that torch.mm multiplies on GPUs. The output has the operands' dtype."""

HALF = ("bf16", "fp16")

FP8 = ("fp8e4m3", "fp8e5m2")

WEIGHTS = ("int8", *PACKED, *FP8)
"""Dtypes of weights that bf16 and fp16 activations are multiplied by."""

PRECISIONS = {
    "fp32": ("ieee", "tf32", "tf32x3", "bf16x3", "ozaki"),
    "fp64": ("ieee", "ozaki"),
    "fp8e4m3": ("ieee", "fast"),
    "fp8e5m2": ("ieee", "fast"),
}
"""Ways to multiply a dtype, the default first. Dtypes that are not listed have one way, "ieee". "ozaki" may name its
moduli, as in "ozaki:14", or be "ozaki:safe"."""

INPUTS = tuple(name for name in DTYPES if name not in ("int32", *PACKED))
"""Dtypes that both operands may have."""


def short_name(dtype: str | torch.dtype) -> str:
    """The name in `DTYPES` of a dtype. Unknown names are returned as text, unchanged.

    dtype: any of torch's spellings: torch.bfloat16, "torch.bfloat16" and "bfloat16" are all "bf16".
    """
    text = str(dtype)
    return _SPELLINGS.get(text.removeprefix("torch."), text)


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype in `FLOATS`. Raises NotImplementedError, as torch does, for any other dtype."""
    name = _NAMES.get(dtype)
    if name in FLOATS:
        return name
    known = ", ".join(str(DTYPES[name]) for name in FLOATS)
    elsewhere = {"int8": "; int_mm multiplies int8", "fp8e4m3": "; scaled_mm multiplies fp8"}
    elsewhere["fp8e5m2"] = elsewhere["fp8e4m3"]
    raise NotImplementedError(f"tritonmm multiplies {known}; got {dtype}{elsewhere.get(name or '', '')}")


def has_precision(dtype: str, precision: str) -> bool:
    """Whether operands of `dtype` can be multiplied that way."""
    return precision in PRECISIONS.get(dtype, ("ieee",)) or moduli_of(dtype, precision) > 0


def precisions_of(dtype: str) -> str:
    """The precisions of a dtype in words."""
    spelled = f", ozaki:{FEWEST_MODULI} to ozaki:{len(MODULI)}, {SAFE}" if dtype in DEFAULT_MODULI else ""
    return ", ".join(PRECISIONS.get(dtype, ("ieee",))) + spelled


def precision_of(dtype: str, precision: str) -> str:
    """`precision` if operands of `dtype` can be multiplied that way, else "ieee"."""
    return precision if has_precision(dtype, precision) else "ieee"


def default_output(dtype: str) -> str:
    """Default output dtype."""
    return {"int8": "int32", "fp8e4m3": "bf16", "fp8e5m2": "bf16"}.get(dtype, dtype)


def output_dtype(dtype: torch.dtype) -> torch.dtype:
    """`default_output` for torch's dtypes."""
    return DTYPES[default_output(any_name(dtype))]


def any_name(dtype: torch.dtype) -> str:
    """The short name of a dtype in `DTYPES`. Raises NotImplementedError for any other dtype."""
    try:
        return _NAMES[dtype]
    except KeyError:
        known = ", ".join(str(DTYPES[name]) for name in INPUTS)
        raise NotImplementedError(f"tritonmm multiplies {known}, and packed weights; got {dtype}") from None


def dtypes_reason(a: str, b: str, out: str) -> str:
    """Why no kernel takes these dtypes of A, B and the output; "" if the combination is legal."""
    if a == "int32" or b == "int32":
        return "int32 is the dtype of outputs only"
    if a in PACKED:
        return f"{a} is the dtype of weights only"
    if a != b and not (a in FP8 and b in FP8) and not (a in HALF and b in WEIGHTS):
        weights = "bf16 or fp16 and int8, int8p, int4 or fp8 weights"
        return f"dtypes are {a} and {b}; they may differ as two kinds of fp8, or {weights}"
    outs = {"int8": ("int32", *HALF, "fp32"), "fp64": ("fp64",), "fp32": ("fp32",)}.get(a, (*HALF, "fp32"))
    return "" if out in outs else f"out_dtype is {out!r}; for {a} operands it must be one of {', '.join(outs)}"


def stored_k(dtype: str, k: int) -> int:
    """Elements along K of the tensor that holds k weights: k, or fewer where they are packed, see `PACKED`."""
    weights, elements = PACKED.get(dtype, (1, 1))
    return -(-k // weights) * elements
