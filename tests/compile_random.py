"""Compiles what `select` chooses for random products, and compares what each kernel needs with what was counted.

    python tests/compile_random.py SEED COUNT [GPU ...] [--from FIRST] [--per-gpu KERNELS]

For each GPU, or for every known one, it goes through COUNT products of `random_products` from the FIRST on, and
compiles every kernel that their plans launch: copies and the table of groups too. A kernel that it has compiled is not
compiled again. It prints a line for each new kernel with its number among the products, so that a run that was ended
goes on with --from. It exits with 1 if a choice is not legal, or a kernel does not compile, needs more shared memory
than its config counts or the GPU has, or spills more than RANDOM_SPILLS.
"""

import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator

import click
import triton
from crosscompile import RANDOM_SPILLS, Compiled, common_fault, product_kernels
from random_products import Product, products, unsupported

from tritonmm import gpu as gpus
from tritonmm.gpu import Gpu
from tritonmm.selection import choose


def fault(product: Product, gpu: Gpu, seen: dict[str, str]) -> Iterator[tuple[str, Compiled | None, str]]:
    """(what, compiled, what is wrong or "") of each kernel of a product that is not among `seen`, where it is added."""
    problem = product.problem
    try:
        config = choose(problem, gpu)
    except ValueError as error:
        yield str(problem), None, f"select says {error}"
        return
    if not (fit := config.fits(problem, gpu)):
        yield f"{problem} {config}", None, f"not legal: {fit.reason}"
    added = "+".join(name for name in ("scaled", "bias", "c") if getattr(problem.epilogue, name))
    aligned = f"{problem.a_alignment},{problem.b_alignment},{problem.out_alignment}"
    what = f"{problem} aligned:{aligned} epilogue:{added} {config}"
    try:
        for compiled, counted in product_kernels(gpu, product, config):
            if compiled.hash not in seen:
                seen[compiled.hash] = what
                yield what, compiled, common_fault(compiled, gpu, counted, RANDOM_SPILLS)
    except Exception as error:  # whatever the compiler raises
        yield what, None, f"{type(error).__name__}: {str(error).splitlines()[-1][:200]}"


@click.command()
@click.argument("seed", type=int)
@click.argument("count", type=int)
@click.argument("names", nargs=-1, metavar="[GPU]...")
@click.option("--from", "first", default=0, help="The first product that is compiled.")
@click.option("--per-gpu", default=10**9, help="End with a GPU after so many kernels.")
def main(seed: int, count: int, names: tuple[str, ...], first: int, per_gpu: int) -> None:
    """Compile what is chosen for random products."""
    faults = 0
    with tempfile.TemporaryDirectory() as os.environ["TRITON_CACHE_DIR"]:
        for gpu in map(gpus.spec, names or gpus.names()):
            began, seen, found = time.time(), {}, Counter()
            for i, product in enumerate(products(seed, count)):
                if i < first or unsupported(product.problem, gpu):
                    continue
                found["products"] += 1
                for what, compiled, why in fault(product, gpu, seen):
                    found["faults"] += bool(why)
                    found["spills"] += bool(compiled and compiled.spilled_bytes)
                    used = ""
                    if compiled:
                        found["largest spill"] = max(found["largest spill"], compiled.spilled_bytes)
                        used = f"{compiled.registers} registers {compiled.shared_bytes} bytes shared"
                        used += f" spills:{compiled.spilled_bytes}" if compiled.spilled_bytes else ""
                    print(f"{gpu.name} {i} {what} {used} {why or 'ok'}", flush=True)
                if len(seen) >= per_gpu:
                    break
            faults += found["faults"]
            print(
                f"{gpu.name}: {found['products']} products, {len(seen)} kernels, {found['faults']} faults,"
                f" {found['spills']} spill, {found['largest spill']} bytes at most, {time.time() - began:.0f} s",
                flush=True,
            )
    print(f"triton {triton.__version__}, seed {seed}: {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="kpack is deprecated")
    main()
