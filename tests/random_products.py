"""Random products of every kind that the library supports but packed int8, whose rows must be contiguous, with tensors
as callers have them: of any strides and at any alignment, without memory."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tritonmm.dtypes import DTYPES, FLOATS, FP8
from tritonmm.gpu import Gpu
from tritonmm.model.chunks import chunks
from tritonmm.problem import KINDS, SYMMETRIES, Epilogue, Problem

MORE_KINDS: dict[str, dict[str, Any]] = {
    # What has no name of its own, or more of it.
    "fp8e5m2": {"dtype": "fp8e5m2", "scales": "tensor"},
    "fp8-fp32": {"dtype": "fp8e4m3", "scales": "row", "precision": "fast", "out_dtype": "fp32"},
    "fp8-blocks": {"dtype": "fp8e4m3", "scales": "1x128*1x128"},
    "fp8-tall-blocks": {"dtype": "fp8e4m3", "scales": "128x128*1x128"},
    "int8-row": {"dtype": "int8", "scales": "row", "out_dtype": "bf16"},
    "int8-block": {"dtype": "int8", "scales": "1x128*128x128", "out_dtype": "fp16"},
    "fp16-int8": {"dtype": "fp16", "b_dtype": "int8", "scales": "group"},
    "bf16-e5m2": {"dtype": "bf16", "b_dtype": "fp8e5m2", "scales": "row", "out_dtype": "fp32"},
    "fp16-e5m2": {"dtype": "fp16", "b_dtype": "fp8e5m2", "scales": "group"},
}


@dataclass(frozen=True)
class Product:
    """A problem, and tensors of it.

    epilogue: C, bias, scales and the offsets of groups by the names that plans give them; without those there are none.
    """

    problem: Problem
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    epilogue: dict[str, Any]


def unsupported(problem: Problem, gpu: Gpu) -> str:
    """Why the library computes no such product on a GPU, as its documentation says; "" if it does."""
    p = problem
    if "fp8e4m3" in (p.dtype, p.b_dtype) and gpu.is_nvidia and gpu.capability < 89:
        return "fp8e4m3 needs sm_89"
    if p.precision == "tf32x3" and not gpu.is_nvidia:
        return "AMD has no tf32x3"
    if p.precision == "tf32" and gpu.arch == "gfx950":
        return "gfx950 has no tf32"
    if p.ragged and p.fixes_sums and gpu.capability == 90 and (p.dtype == "fp64" or chunks(p) > 1):
        return "groups have no invariant sums of fp64, or of a K that is summed in chunks, on sm_90"
    return ""


def products(seed: int, count: int) -> Iterator[Product]:
    """So many random products. The same seed makes the same ones."""
    draw = random.Random(seed)
    while count:
        try:
            yield _product(draw)
        except ValueError:  # a combination that is no problem: an epilogue with groups, say
            continue
        count -= 1


def _product(draw: random.Random) -> Product:
    kinds = {name: fields for name, fields in KINDS.items() if fields.get("b_dtype") != "int8p"} | MORE_KINDS
    fields = kinds[draw.choice(list(kinds))]
    sizes = (32, 64, 128) if fields.get("b_dtype") == "int4" else (16, 32, 64, 128)
    p = Problem(1, 1, 1, **fields, group=draw.choice(sizes) if fields.get("scales", "").startswith("group") else 128)
    m, n, k = (_size(draw) for _ in range(3))
    what = draw.choices(("dense", "batch", "groups", "symmetric"), (6, 2, 1, 1))[0]
    ragged, symmetric, batch, groups = "", "", 1, 0
    if what == "batch" and not p.scales:
        batch = draw.choice((0, 2, 3, 8, 33))
    elif what == "groups" and p.scales in ("", "row"):
        ragged = "m" if p.scales else draw.choice("mk")
        groups = draw.choice((1, 3, 16, 128))
    elif what == "symmetric" and p.dtype == p.b_dtype and p.dtype in FLOATS:
        symmetric, n = draw.choice(SYMMETRIES), m
    some = [draw.random() < 0.3 for _ in range(3)]
    epilogue = Epilogue(some[0] and not ragged, some[1], some[2] and not ragged)
    if p.out_dtype == "int32":  # no function adds to exact sums, or scales them
        epilogue = Epilogue()
    a = _operand(draw, (batch, m, k), p.dtype)
    b = _operand(draw, (groups if ragged == "m" else batch, k, n), p.b_dtype)
    if symmetric == "gram":
        b = a.mT
    out = _operand(draw, (groups if ragged == "k" else batch, m, n), p.out_dtype, "n" if draw.random() < 0.9 else "t")
    problem = Problem.of(
        a, b, out, p.precision, epilogue, p.scales, p.group, draw.choice(("any", "any", "invariant")), symmetric, ragged
    )
    if ragged == "k" and p.dtype in FP8:
        raise ValueError("fp8 has scales")
    if ragged and p.scales:
        problem = replace(problem, accumulation="any")
    given: dict[str, Any] = {}
    if epilogue.c:
        c = out if draw.random() < 0.5 else torch.empty(1, n, dtype=out.dtype, device="meta").expand(out.shape)
        given["c"] = c
    if epilogue.bias:
        given["bias"] = torch.empty((groups, n) if ragged else (n,), dtype=out.dtype, device="meta")
    if problem.scales:
        given["scales"] = tuple(shape and torch.empty(shape, device="meta") for shape in problem.scale_shapes)
    if ragged:
        given["offs"] = torch.empty(groups, dtype=torch.int32, device="meta")
    return Product(problem, a, b, out, given)


def _size(draw: random.Random) -> int:
    """A size from 0 to 50,000: half are multiples of a power of two, few are tiny, all orders of magnitude are met."""
    size = int(2 ** draw.uniform(0, 15.6))
    if draw.random() < 0.02:
        return draw.choice((0, 1))
    unit = draw.choice((1, 1, 1, 2, 4, 8, 16, 64, 128))
    return max(unit, size // unit * unit)


def _operand(draw: random.Random, shape: tuple[int, int, int], dtype: str, letter: str = "") -> torch.Tensor:
    """A view of (batch, rows, columns): lines may be padded, not contiguous, and begin anywhere."""
    batch, rows, cols = shape
    letter = letter or draw.choices("nts", (45, 45, 10))[0]
    lines, length = (cols, rows) if letter == "t" else (rows, cols)
    step = 2 if letter == "s" else 1
    pitch = max(1, length * step) + draw.choice((0, 0, 0, 0, 1, 2, 8, 24))
    if draw.random() < 0.3:  # lines begin at multiples of 16 bytes, whatever their length
        pitch = -(-pitch // 16) * 16
    memory_offset = draw.choice((0, 0, 0, 0, 0, 1, 2, 4, 8))
    strides = (lines * pitch, 1, pitch) if letter == "t" else (lines * pitch, pitch, step)
    count = memory_offset + max(1, batch) * max(1, lines) * pitch
    memory = torch.empty(count, dtype=DTYPES[dtype], device="meta")
    return memory.as_strided((batch, rows, cols), strides, memory_offset)
