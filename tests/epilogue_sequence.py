"""Compiles each family's kernel with alpha and C for sm_90, if it has them, and prints a line for each whose PTX has
the operations in another order than `device/epilogue.py` says; exits with 1 then.

C is fp16 and nothing else is. So what follows from a conversion of fp16 is C: each element must be multiplied by fma,
whose addend is multiplied by alpha before. Run in a process of its own, since the rest of the tests interpret kernels.
"""

import re
import sys
from collections import Counter

from crosscompile import compile_for

from tritonmm import families, orders
from tritonmm import gpu as gpus
from tritonmm.config import Config
from tritonmm.problem import Epilogue, Problem

H200 = gpus.spec("h200")
CONFIGS = {
    "tile": Config("tile", 32, 32, 32, 2, 4),
    "persistent": Config("persistent", 64, 64, 64, 2, 4, persistent=True),
    "hopper": Config("hopper", 64, 32, 64, 2, 4, persistent=True),
    "skinny": Config("skinny", 16, 32, 64, 2, 4, order=orders.RowMajor()),
    "exact": Config("exact", 64, 32, 16, 2, 4),
    "mixed_input": Config("mixed_input", 16, 128, 64, 2, 8, order=orders.RowMajor()),
}
WITHOUT_C = ("grouped",)
"""Families that multiply groups alone, which have neither."""

OTHERWISE = {"exact": {"dtype": "fp32"}, "mixed_input": {"b_dtype": "int8", "scales": "row"}}


def ptx(family: str) -> str:
    fields = {"layout": "nt", "epilogue": Epilogue(scaled=True, c=True)} | OTHERWISE.get(family, {})
    return compile_for(H200, Problem.dense(256, 256, 256, **fields), CONFIGS[family], c_dtype="fp16").assembly


def fault(assembly: str) -> str:
    """What is wrong with the order of a kernel's operations, or ""."""
    found = re.findall(r"\b((?:mul|add|sub|fma|cvt)[\w.]*)\s+([^;]*);", assembly)
    operations = [(name, arguments.split(", ")) for name, arguments in found]
    added = {arguments[0] for name, arguments in operations if name == "cvt.f32.f16"}
    uses = [(name, arguments) for name, arguments in operations if added & set(arguments[1:])]
    fused = [name for name, arguments in uses if name == "fma.rn.f32" and added & set(arguments[1:3])]
    scaled = sum(name == "mul.f32" for name, _ in operations)  # and not mul.rn.f32, which may not be fused
    if not len(added) == len(uses) == len(fused) > 0 or scaled < len(fused):
        used = dict(Counter(name for name, _ in uses))
        return f"{len(added)} elements of C are used by {used}, {len(fused)} as fma multiplies them; {scaled} mul.f32"
    return ""


def main() -> int:
    found = {family: fault(ptx(family)) for family in families.names() if family not in WITHOUT_C}
    faults = [f"{family}: {why}" for family, why in found.items() if why]
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
