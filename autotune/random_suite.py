"""A suite of random products, to judge `select` on what nobody has tuned or fitted anything to.

python -m tritonmm.autotune.random_suite > autotune/suites/random60.json
"""

import json
import random
from dataclasses import asdict

import click

from tritonmm.autotune import suite
from tritonmm.autotune.suite import Entry

SEED = 62
COUNT = 60

FLOPS = 10**12
"""At most: less than 2 ms at 500 TFLOP/s."""


def entries(count: int = COUNT, seed: int = SEED) -> list[Entry]:
    """Different bf16 products, of sizes log-uniform in 16 to 16384 (m) and 64 to 16384 (n, k), NN and NT in turn.

    Families: "whole", two thirds, where m is a multiple of 16, and n and k of 64; "ragged", where m is odd, and n and k
    odd multiples of 8, so that no block divides them; "unaligned", a ninth, where all three are odd, and TMA cannot
    address anything. None is in the public suite. Deterministic.
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


def text(found: list[Entry]) -> str:
    """The suite's file, an entry a line."""
    return "[" + ",\n".join(json.dumps(asdict(entry)) for entry in found) + "]\n"


@click.command()
@click.option("--count", default=COUNT, show_default=True, help="Products.")
@click.option("--seed", default=SEED, show_default=True)
def main(count: int, seed: int) -> None:
    """Print a suite of random products."""
    click.echo(text(entries(count, seed)), nl=False)


if __name__ == "__main__":
    main()
