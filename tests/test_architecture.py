"""The arrows between the rooms: plots -> autotune -> tritonmm, and within tritonmm from a call to its kernel.

Read from the sources, so that an import inside of a function counts as well. What importing tritonmm costs is
test_import's matter.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WORDS = {"version", "forks", "problem", "gpu", "orders", "hopper", "sliced", "weights", "config", "seats"}
MODELS = {"l2", "l2_laws", "l2_megarows", "l2_simulator", "l2_waves", "cost"}
SELECT = {"select", "estimates", "skinny", "streams", "torch_time", "tuned"}
PRODUCTS = {"products", "rules", "dispatch", "call_cache", "first_call"}
OPS = {"ops", "quantized"}
OVERRIDE = {"override", "policy", "routes", "leaves", "quantized_leaves"}
LIBRARY = WORDS | MODELS | SELECT | PRODUCTS | OPS | OVERRIDE | {"kernels", "layouts", "launch", "plan", "explanation"}

KNOWS = [
    (WORDS, set()),
    ({"kernels"}, set()),
    ({"layouts"}, set()),
    (MODELS, WORDS),
    (SELECT, WORDS | MODELS),
    ({"launch"}, WORDS | {"kernels", "layouts"}),
    ({"plan"}, WORDS | {"launch"}),
    (PRODUCTS, WORDS | SELECT | {"plan", "launch"}),
    (OPS, WORDS | PRODUCTS),
    (OVERRIDE, WORDS | MODELS | SELECT | PRODUCTS | OPS),
    ({"explanation"}, WORDS | MODELS | SELECT | PRODUCTS | OPS | OVERRIDE),
    ({"public"}, LIBRARY),
    ({""}, {"public"}),
    ({"autotune"}, LIBRARY | {""}),
    ({"plots"}, LIBRARY | {"", "autotune"}),
    ({"cli", "tour"}, LIBRARY | {"", "autotune", "plots"}),
    ({"__main__"}, {"cli"}),
]
"""The modules and packages of each room, and those of other rooms that they may import. "" is tritonmm itself."""

ROOMS = {name: names | known for names, known in KNOWS for name in names}


def modules() -> dict[str, Path]:
    """Every module by its name after `tritonmm.`, "" for the package itself."""
    found = {}
    for folder, package in (("tritonmm", ()), ("autotune", ("autotune",)), ("plots", ("plots",))):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (*package, *path.relative_to(ROOT / folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(tree: ast.AST, everywhere: bool = True) -> Iterator[str]:
    """Modules of tritonmm that a source imports, also inside of functions if `everywhere`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            # `from tritonmm import orders` imports a module, and `from tritonmm.orders import parse` one too.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            if everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from imports(node, everywhere)
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "tritonmm":
                while rest and rest not in MODULES:
                    rest = rest.rpartition(".")[0]
                yield rest


def room(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module):
    known = ROOMS.get(room(module))
    assert known is not None, f"tritonmm.{module} is in no room: say in which, here and in the README's map"
    for imported in imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        assert room(imported) in known, f"tritonmm.{module} must not know tritonmm.{imported}: it knows {sorted(known)}"


def test_rooms_have_modules():
    assert set(ROOMS) == {room(module) for module in MODULES}


def test_no_module_imports_itself_in_a_circle():
    graph = {
        module: set(imports(ast.parse(path.read_text(encoding="utf-8")), everywhere=False)) - {module, ""}
        for module, path in MODULES.items()
        if module  # tritonmm itself imports its names when they are asked for
    }
    # A package's module may ask for a sibling by the package's name.
    packages = {module for module in graph if MODULES[module].name == "__init__.py"}
    inside = {m: {x for x in found if not (x in packages and m.startswith(f"{x}."))} for m, found in graph.items()}
    graphlib.TopologicalSorter(inside).prepare()


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) == "cli"])
def test_commands_import_what_is_slow_inside(module):
    above = set(imports(ast.parse(MODULES[module].read_text(encoding="utf-8")), everywhere=False))
    assert {room(x) for x in above} <= {"cli", "version"}


def test_device_code_is_launched_in_one_place():
    users = {room(m) for m in MODULES for x in imports(ast.parse(MODULES[m].read_text())) if room(x) == "kernels"}
    assert users <= {"kernels", "launch"}


def test_no_file_is_longer_than_500_lines():
    long = {}
    for folder in ("tritonmm", "autotune", "plots", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > 500:
                long[str(path.relative_to(ROOT))] = lines
    assert not long
