"""A digest of the sources that decide a trial: the modules that its measurement imports, directly or indirectly."""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import tritonmm

ROOTS = ("autotune.measuring.sources", "autotune.measuring.counters", "families")
"""Modules that run a trial: they check a config, time it, model its time, or count its bytes. Kernel families are
loaded by name at run time, so all of them are roots."""


PACKAGES = {(): Path(tritonmm.__file__).parent, ("autotune",): Path(__file__).parents[1]}
"""The folders of `tritonmm` and `tritonmm.autotune`, by their names after `tritonmm`."""


def modules(packages: Mapping[tuple[str, ...], Path] = PACKAGES) -> dict[str, Path]:
    """The source file of each module, by the module's name after `tritonmm.`; "" is the package itself."""
    found = {}
    for prefix, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (*prefix, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, known: Iterable[str], everywhere: bool = True) -> Iterator[str]:
    """The modules of `known` that a source imports, except for types only.

    everywhere: whether imports inside functions count.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Both `from tritonmm import orders` and `from tritonmm.orders import parse` import tritonmm.orders.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        else:
            if everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from imports(node, known, everywhere)
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "tritonmm":
                while rest and rest not in known:
                    rest = rest.rpartition(".")[0]
                yield rest


def closure(roots: Iterable[str], sources: Mapping[str, Path]) -> list[str]:
    """`roots` and all modules that they import, directly or indirectly, sorted. A package stands for all its modules.

    "" is left out, because the package itself only forwards public names.
    """
    found: set[str] = set()
    waiting = [module for module in sources for root in roots if module == root or module.startswith(f"{root}.")]
    while waiting:
        module = waiting.pop()
        if module and module not in found:
            found.add(module)
            tree = ast.parse(sources[module].read_text(encoding="utf-8"))
            waiting += imports(tree, sources)
    return sorted(found)


def digest(sources: Mapping[str, Path]) -> str:
    """Digest of every source that decides a trial, and of the fitted constants that time modelled ones."""
    found = hashlib.sha256()
    for record in sorted(sources["model.constants"].parent.glob("*.json")):
        found.update(record.name.encode() + b"\0" + record.read_bytes())
    for module in closure(ROOTS, sources):
        found.update(module.encode() + b"\0" + sources[module].read_bytes())
    return found.hexdigest()[:12]


@functools.cache
def code_digest() -> str:
    """`digest` of this installation."""
    return digest(modules())
