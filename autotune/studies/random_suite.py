"""Suites of random GEMMs, to judge `select` and the policy on problems that nothing was tuned or fitted to.

python -m tritonmm.autotune.studies.random_suite > autotune/suites/random60.json
python -m tritonmm.autotune.studies.random_suite --mixed --count 420 > autotune/suites/mixed420.json
python -m tritonmm.autotune.studies.random_suite --mixed --count 210 --seed 7 > autotune/suites/mixed210.json
"""

import json
import random
from dataclasses import MISSING, fields

import click

from tritonmm.autotune.bench import suite
from tritonmm.autotune.bench.suite import Entry

SEED = 62
COUNT = 60

FLOPS = 10**12
"""The most FLOPs of a GEMM: less than 2 ms at 500 TFLOP/s."""


def entries(count: int = COUNT, seed: int = SEED) -> list[Entry]:
    """Different bf16 GEMMs that are not in the public suite, alternating between NN and NT. Deterministic.

    Sizes are log-uniform: m from 16 to 16384, n and k from 64 to 16384. Families:
    "whole": two thirds; m is a multiple of 16, n and k of 64.
    "ragged": two ninths; m is odd, n and k are odd multiples of 8, so that no block divides them.
    "unaligned": one ninth; all three are odd, so that TMA can address no operand.
    """
    chosen = random.Random(seed)
    public = {(entry.m, entry.n, entry.k) for entry in suite.load("public")}
    found: list[Entry] = []
    for i in range(count):
        family = ("whole", "whole", "unaligned" if i % 9 == 8 else "ragged")[i % 3]
        while True:
            m, n, k = (round(2 ** chosen.uniform(least, 14)) for least in (4, 6, 6))
            if family == "whole":
                m, n, k = max(16, m // 16 * 16), n // 64 * 64, k // 64 * 64
            elif family == "ragged":
                m, n, k = m | 1, n // 16 * 16 + 8, k // 16 * 16 + 8
            else:
                m, n, k = m | 1, n | 1, k | 1
            known = public | {(entry.m, entry.n, entry.k) for entry in found}
            if max(m, n, k) <= 16384 and 2 * m * n * k <= FLOPS and (m, n, k) not in known:
                break
        found.append(Entry(family, m, n, k, 1, ("nn", "nt")[i // 3 % 2], "bf16"))
    return found


LAYOUTS = ("nn", "nt", "tn", "tt")

MIX = (
    ("layouts", ("bf16",)),
    ("fp16", ("fp16",)),
    ("batched", ("bf16", "fp16")),
    ("fp32", ("fp32",)),
    ("layouts", ("bf16",)),
    ("batched", ("bf16",)),
    ("tf32", ("tf32",)),
    ("layouts", ("bf16",)),
    ("fp16", ("fp16",)),
    ("batched", ("bf16", "tf32", "fp32")),
    ("fp32", ("fp32",)),
    ("fp32-out", ("bf16-fp32", "fp16-fp32")),
    ("one-byte", ("int8", "fp8", "fp8-row", "fp8-ieee")),
    ("tf32", ("tf32",)),
)
"""Families of `mixed` and their kinds of GEMMs, one after the other."""


def mixed(count: int, seed: int) -> list[Entry]:
    """GEMMs of many kinds, all four layouts and batches: the families of `MIX`. Deterministic.

    Half of the GEMMs have multiples of 16 (m) and 64 (n, k), a quarter odd multiples of 8, a quarter odd sizes. 8-bit
    operands always have multiples of 16 and the layout that torch supports. Batches have 2 to 256 GEMMs of sizes up to
    2048.
    """
    chosen = random.Random(seed)
    found: list[Entry] = []
    for i in range(count):
        family, kinds = MIX[i % len(MIX)]
        kind = kinds[i // len(MIX) % len(kinds)]
        batch = round(2 ** chosen.uniform(1, 8)) if family == "batched" else 1
        most = 14 if batch == 1 else 11
        alignment = chosen.choice(("whole", "whole", "ragged", "unaligned"))
        layout = chosen.choice(LAYOUTS)
        while True:
            m, n, k = (round(2 ** chosen.uniform(least, most)) for least in (4, 6, 6))
            if family == "one-byte":
                (m, n, k), layout = (x // 16 * 16 + 16 for x in (m, n, k)), "nt"
            elif alignment == "whole":
                m, n, k = max(16, m // 16 * 16), n // 64 * 64, k // 64 * 64
            elif alignment == "ragged":
                m, n, k = m | 1, n // 16 * 16 + 8, k // 16 * 16 + 8
            else:
                m, n, k = m | 1, n | 1, k | 1
            if 2 * batch * m * n * k <= FLOPS:
                break
        found.append(Entry(family, m, n, k, batch, layout, kind))
    return found


def text(found: list[Entry]) -> str:
    """The suite's file, a line for each entry."""
    given = ({f.name: getattr(entry, f.name) for f in fields(entry) if f.default is MISSING} for entry in found)
    return "[" + ",\n".join(map(json.dumps, given)) + "]\n"


@click.command()
@click.option("--count", default=COUNT, show_default=True, help="Number of GEMMs.")
@click.option("--seed", default=SEED, show_default=True)
@click.option("--mixed", "is_mixed", is_flag=True, help="Use many dtypes, all layouts, and batches.")
def main(count: int, seed: int, is_mixed: bool) -> None:
    """Print a suite of random GEMMs."""
    click.echo(text((mixed if is_mixed else entries)(count, seed)), nl=False)


if __name__ == "__main__":
    main()
