"""Operands of every kind, and their invariant products: of any rows and columns, in any layout, with any config.

Run as a program it adds what invariant_hashes.json lacks: what the emulator computes, and on a Hopper the rest.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tritonmm import Config, Problem
from tritonmm.accumulation import Verdict, emulate, verify
from tritonmm.dtypes import DTYPES, PACKED
from tritonmm.problem import KINDS
from tritonmm.torch_ops.product import How, problem_of, product

FURTHER = {
    "fp8-1x128*1x128": {"dtype": "fp8e4m3", "scales": "1x128*1x128"},
    "fp8-128x128*1x128": {"dtype": "fp8e4m3", "scales": "128x128*1x128"},
    "fp16-int8-32": {"dtype": "fp16", "b_dtype": "int8", "scales": "group", "group": 32},
    "bf16-int8-16": {"dtype": "bf16", "b_dtype": "int8", "scales": "group", "group": 16},
    "fp16-fp8-row": {"dtype": "fp16", "b_dtype": "fp8e5m2", "scales": "row"},
}
CASES = {name: fields for name, fields in KINDS.items() if fields.get("b_dtype") not in PACKED} | FURTHER
"""Fields of a `Problem` by the name of a case. Packed weights have the bits of int8 with the same weights."""

EPILOGUES = {"": {}, "alpha": {"alpha": 0.7}, "alpha bias": {"alpha": -1.3}, "alpha C": {"alpha": 0.7, "beta": 1.9}}
EPILOGUES |= {"bias": {}, "C": {"beta": 0.3}, "alpha bias C": {"alpha": 0.7, "beta": 1.9}}
"""alpha and beta by the names of what an epilogue has."""


HASHES = Path(__file__).parent / "invariant_hashes.json"
"""SHA-256 of results, by the name of a case and its epilogue, of `hashed(case)`."""


@dataclass(frozen=True)
class Operands:
    """a (rows, k), b (k, n), c (rows, n) and bias (n,), scales, and the case they are of."""

    name: str
    problem: Problem
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    bias: torch.Tensor
    scale_a: torch.Tensor | None = field(default=None)
    scale_b: torch.Tensor | None = field(default=None)

    def product(
        self,
        rows: slice = slice(None),
        cols: slice = slice(None),
        *,
        stored: str = "as is",
        epilogue: str = "",
        config: Config | None = None,
        accumulation: str = "invariant",
    ) -> torch.Tensor:
        """The product of these rows of a by these columns of b.

        stored: how a and b lie in memory: two letters of a layout, or "off" for addresses that divide by their elements
            alone.
        """
        a, b, how, addends = self._arguments(rows, cols, stored, epilogue, accumulation)
        return product(a, b, config=config, how=how, **addends)

    def asked(self, rows: slice, cols: slice = slice(None), stored: str = "as is", epilogue: str = "") -> Problem:
        """The problem of that product."""
        a, b, how, addends = self._arguments(rows, cols, stored, epilogue, "invariant")
        out = a.new_empty(a.shape[0], b.shape[1], dtype=how.out_dtype)
        return problem_of(a, b, out, ("alpha" in addends, "bias" in addends, "c" in addends), how)

    def verdict(self, found: torch.Tensor, epilogue: str = "", samples: int = 2000) -> Verdict:
        """What `accumulation.verify` says of a result of all rows and columns."""
        _, _, how, addends = self._arguments(slice(None), slice(None), "as is", epilogue, "invariant")
        scale_b = how.scale_b if how.scale_a is not None or how.scale_b is None else how.scale_b.t()
        return verify(
            self.a, self.b, found, scale_a=how.scale_a, scale_b=scale_b, precision=how.precision, samples=samples,
            seed=0, **addends,
        )  # fmt: skip

    def emulated(self, epilogue: str = "") -> torch.Tensor:
        """The product that `accumulation.emulate` computes. Raises NotImplementedError for what it does not cover."""
        _, _, how, addends = self._arguments(slice(None), slice(None), "as is", epilogue, "invariant")
        scale_b = how.scale_b if how.scale_a is not None or how.scale_b is None else how.scale_b.t()
        return emulate(
            self.a, self.b, scale_a=how.scale_a, scale_b=scale_b, precision=how.precision, out_dtype=how.out_dtype,
            **addends,
        )  # fmt: skip

    def _arguments(self, rows, cols, stored, epilogue, accumulation):
        p = self.problem
        a, b = _stored(self.a[rows], stored, 0), _stored(self.b[:, cols], stored, 1)
        row = slice(*rows.indices(self.a.shape[0])[:2])
        col = slice(*cols.indices(self.b.shape[1])[:2])
        scales = _of_lines(self.scale_a, row, p.rows_per_scale), None
        if self.scale_b is not None:
            of_b = _of_lines(self.scale_b.t(), col, p.cols_per_scale)
            scales = scales[0], of_b.t()
        if p.scales == "tensor":
            scales = self.scale_a, self.scale_b
        addends = dict(EPILOGUES[epilogue])
        if "bias" in epilogue:
            addends["bias"] = self.bias[cols]
        if "C" in epilogue:
            addends["c"] = self.c[rows, cols]
        how = How(p.precision, DTYPES[p.out_dtype], *scales, p.scales, p.group, accumulation)
        return a, b, how, addends


def operands(name: str, rows: int, n: int, device: torch.device, k: int = 0) -> Operands:
    """Operands of a case. The same for everybody: they come from integers of NumPy's PCG64.

    k: by default 1040, or 1024 for weights with scales of groups.
    """
    k = k or (1024 if CASES[name].get("scales") == "group" else 1040)
    problem = Problem(rows, n, k, layout="nt", **CASES[name])
    random = np.random.default_rng([rows, n, k, *name.encode()])

    def wide(*shape, dtype="fp32"):
        # 24 random bits and seven exponents: sums that no order adds exactly. The same on every machine.
        values = random.integers(-(1 << 23), 1 << 23, shape) * 2.0 ** random.integers(-26, -19, shape)
        values = np.rint(values * 8) if dtype == "int8" else values
        return torch.from_numpy(values.astype(np.float32)).to(DTYPES[dtype]).to(device)

    a, b = wide(rows, k, dtype=problem.dtype), wide(n, k, dtype=problem.b_dtype).t()
    added = "fp32" if problem.out_dtype == "int32" else problem.out_dtype
    scales = {}
    if problem.scales:
        of_a, of_b = problem.scale_shapes
        scales["scale_a"] = None if of_a is None else wide(*of_a).abs() + 0.25
        scales["scale_b"] = wide(*of_b).abs() + 0.25
    return Operands(name, problem, a, b, wide(rows, n, dtype=added), wide(n, dtype=added), **scales)


def hashed(name: str, device: torch.device) -> Operands:
    """The operands of the hashes of a case."""
    return operands(name, 100, 200, device)


def epilogues(name: str) -> list[str]:
    """The epilogues that a case may have."""
    return [""] if KINDS.get(name) == {"dtype": "int8"} else list(EPILOGUES)


def digest(found: torch.Tensor) -> str:
    """SHA-256 of the bits of a result, row by row."""
    return hashlib.sha256(found.contiguous().cpu().view(torch.uint8).numpy().tobytes()).hexdigest()


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of each element, as an integer."""
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


def _stored(x: torch.Tensor, stored: str, which: int) -> torch.Tensor:
    """A copy of x that lies in memory as asked; x itself for "as is"."""
    if stored == "as is":
        return x
    rows, cols = x.shape
    if stored == "off":
        lines = x if x.stride(1) == 1 else x.t()
        wide = lines.new_empty(lines.shape[0] * (lines.shape[1] + 1) + 1)[1:]
        copy = wide.view(lines.shape[0], lines.shape[1] + 1)[:, :-1]
        copy.copy_(lines)
        return copy if x.stride(1) == 1 else copy.t()
    letter = stored[which]
    if letter == "s":
        return x.new_empty(2 * rows, 2 * cols)[::2, ::2].copy_(x)
    return x.contiguous() if letter == "n" else x.t().contiguous().t()


def _of_lines(scale: torch.Tensor | None, lines: slice, together: int) -> torch.Tensor | None:
    """The scales of these lines, of which `together` share one."""
    if scale is None:
        return None
    assert lines.start % together == 0
    return scale[lines.start // together : -(-lines.stop // together)]


def main() -> None:
    known = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    for name in CASES:
        for epilogue in epilogues(name):
            key = f"{name} {epilogue}".strip()
            if key in known:
                continue
            try:
                known[key] = digest(hashed(name, torch.device("cpu")).emulated(epilogue))
            except NotImplementedError:
                if on_hopper:
                    known[key] = digest(hashed(name, torch.device("cuda")).product(epilogue=epilogue))
        HASHES.write_text(json.dumps(known, indent=1) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main()
