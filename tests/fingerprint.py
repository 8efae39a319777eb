"""What must not change when code only moves: the PTX of every compile-gate case, and `select`'s choice for every suite.

    python tests/fingerprint.py before.json            # at the old commit
    python tests/fingerprint.py after.json             # at the new one
    python tests/fingerprint.py --compare before.json after.json

PTX is compared as a multiset of digests, after kernel names, source lines and debug sections are removed, so cases
and kernels may be renamed. Names of kernel families in configs may be renamed with --renamed OLD=NEW. Exits with 1
where anything differs. It takes about 15 minutes of two cores.
"""

import collections
import hashlib
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

GPUS = ("a100", "h200", "b200", "mi300x")


def normalized(ptx: str) -> str:
    """The assembly without kernel names, source lines, debug sections, labels of debug information and comments."""
    ptx = re.sub(r"\.section\s+\.debug.*", "", ptx, flags=re.S)
    for name in set(re.findall(r"\.(?:visible \.entry|globl|amdhsa_kernel)\s+(\w+)", ptx)):
        ptx = re.sub(rf"\b{name}(?=\b|_param)", "kernel", ptx)
    lines = (re.sub(r"//.*|;.*$", "", line) if line.startswith("\t;") else line for line in ptx.splitlines())
    dropped = re.compile(r"\s*(\.loc|\.file|//|\$L__tmp\d+:)")
    kept = (line.partition("//")[0].strip() for line in lines if not dropped.match(line))
    return "\n".join(filter(None, kept))


def digests(family: str, part: int, parts: int) -> list[tuple[str, str]]:
    """(case, digest) of one of so many parts of a family of `compile_cases`."""
    from compile_cases import share
    from crosscompile import compiled

    found = []
    with tempfile.TemporaryDirectory() as os.environ["TRITON_CACHE_DIR"]:
        for gpu, *what in share(family, part, parts):
            found_case, _ = compiled(gpu, *what)
            text = normalized(found_case.assembly)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            found.append((f"{gpu.arch} {' '.join(map(str, what))}", f"{digest} {found_case.registers} registers"))
    return found


def choices() -> dict[str, str]:
    """`select`'s config, as JSON, for every product of every suite, on GPUs of four architectures."""
    from tritonmm import gpu as gpus
    from tritonmm.autotune.bench import suite
    from tritonmm.selection import choose

    found = {}
    for name in suite.names():
        for entry in suite.load(name):
            for gpu in map(gpus.spec, GPUS):
                try:
                    config = choose(entry.problem(), gpu).to_json()
                except ValueError:  # no config is legal: fp8 on an A100, say
                    config = ""
                found[f"{gpu.name} {entry.problem()}"] = config
    return found


def differences(before: dict, after: dict, renamed: dict[str, str]) -> list[str]:
    """A line for each digest that only one has, and for each choice that differs."""

    from tritonmm import families

    def spelled(config: str) -> str:
        found = json.loads(config or '{"kernel": ""}')
        found["kernel"] = renamed.get(found["kernel"], found["kernel"])
        if families.family(found["kernel"]).persistent is not None:
            found.pop("persistent", None)  # older files have it where it is no choice
        return json.dumps(found, sort_keys=True)

    lines = []
    counts = [collections.Counter(digest for _, digest in found["ptx"]) for found in (before, after)]
    for name, found, extra in (("before", before, counts[0] - counts[1]), ("after", after, counts[1] - counts[0])):
        for case, digest in found["ptx"]:
            if extra[digest] > 0:
                extra[digest] -= 1
                lines.append(f"PTX only {name}: {case}: {digest}")
    for product in before["choices"].keys() | after["choices"].keys():
        was, now = before["choices"].get(product), after["choices"].get(product)
        if was is None or now is None or spelled(was) != spelled(now):
            lines.append(f"choice for {product}: {was} -> {now}")
    return sorted(lines)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--compare", is_flag=True, help="Compare two files instead of writing one.")
@click.option("--renamed", multiple=True, metavar="OLD=NEW", help="A kernel family that has another name after.")
def main(files: tuple[Path, ...], compare: bool, renamed: tuple[str, ...]) -> None:
    """Write the fingerprint of this checkout, or compare two."""
    if compare:
        if len(files) != 2:
            raise click.UsageError(f"--compare takes two files; got {len(files)}")
        before, after = (json.loads(path.read_text()) for path in files)
        lines = differences(before, after, dict(pair.split("=", 1) for pair in renamed))
        click.echo("\n".join(lines))
        click.echo(f"{len(after['ptx'])} kernels, {len(after['choices'])} choices: {len(lines)} differences")
        sys.exit(bool(lines))
    if len(files) != 1:
        raise click.UsageError(f"one file to write; got {len(files)}")
    from compile_cases import FAMILIES

    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        jobs = [pool.submit(digests, family, i, cores) for family in FAMILIES for i in range(cores)]
        chosen = pool.submit(choices)
        found = {"ptx": [pair for job in jobs for pair in job.result()], "choices": chosen.result()}
    files[0].write_text(json.dumps(found, indent=1))
    click.echo(f"{files[0]}: {len(found['ptx'])} kernels, {len(found['choices'])} choices")


if __name__ == "__main__":
    main()
