"""The direction of imports, lowest first: values, models and device code, families, selection, torch, tools.

Read from the sources, so that an import inside of a function counts as well. What importing tritonmm costs is
test_import's matter.
"""

import ast
import graphlib
import tomllib
from pathlib import Path

import pytest

from tritonmm import families
from tritonmm.autotune.measuring.code_digest import imports
from tritonmm.autotune.measuring.code_digest import modules as sources
from tritonmm.device.constexpr_args import KERNELS

ROOT = Path(__file__).parents[1]

VALUES = {
    "version",
    "forks",
    "alignment",
    "dtypes",
    "moduli",
    "scales",
    "problem",
    "config",
    "gpu",
    "user_files",
    "orders",
    "families",
}
BELOW = VALUES | {"device", "layouts", "model", "launch"}
CHOOSING = BELOW | {"families.*", "tuned", "selection", "policy", "plan"}
LIBRARY = CHOOSING | {"ozaki", "torch_ops", "nn", "explanation", "accumulation"}

KNOWS = {
    **dict.fromkeys(VALUES, VALUES),
    "device": {"device"},
    "layouts": {"layouts"},
    "model": VALUES | {"model"},
    "launch": VALUES | {"device", "launch"},
    "families.*": BELOW | {"families.*"},
    "tuned": VALUES | {"model", "tuned"},
    "selection": VALUES | {"model", "tuned", "selection"},
    "policy": VALUES | {"model", "tuned", "selection"},
    "plan": VALUES | {"launch", "plan"},
    "ozaki": VALUES | {"device", "launch", "ozaki"},
    "torch_ops": VALUES | {"model", "launch", "tuned", "selection", "policy", "plan", "ozaki", "torch_ops"},
    "nn": {"torch_ops", "nn"},
    "explanation": VALUES | {"model", "selection", "policy", "torch_ops"},
    "accumulation": {"dtypes", "problem", "model", "accumulation"},
    "public": LIBRARY,
    "": {"public"},
    "autotune": LIBRARY | {"", "autotune"},
    "plots": LIBRARY | {"", "autotune", "plots"},
    "cli": LIBRARY | {"", "autotune", "plots", "cli"},
    "__main__": {"cli"},
}
"""What each part may import. "" is tritonmm itself; "families" is the registry, "families.*" what the families share,
and the families themselves, which import no other family."""


def modules() -> dict[str, Path]:
    """Every module by its name after `tritonmm.`, "" for the package itself."""
    plots = {f"plots.{path.stem}": path for path in sorted((ROOT / "plots").glob("*.py"))}
    return sources() | {name.removesuffix(".__init__"): path for name, path in plots.items()}


MODULES = modules()


def tree(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def part(module: str) -> str:
    """The entry of `KNOWS` that a module belongs to."""
    first, _, rest = module.partition(".")
    return "families.*" if first == "families" and rest not in ("", "family") else first


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    known = KNOWS.get(part(module))
    assert known is not None, f"tritonmm.{module} is in no part: say in which, here and in the README's map"
    for imported in imports(tree(module), MODULES):
        assert part(imported) in known, f"tritonmm.{module} must not import tritonmm.{imported}, only {sorted(known)}"
        if part(module) == part(imported) == "families.*" and module.count(".") > 1 and imported.count(".") > 1:
            same = module.split(".")[1] == imported.split(".")[1]
            assert same, f"tritonmm.{module} must not import another family, tritonmm.{imported}"


def test_parts_have_modules():
    assert set(KNOWS) == {part(module) for module in MODULES}


NAMES_FAMILIES = {"cli.sweep", "cli.layout", "cli.tour", "autotune.doctor.selftest"}
"""A default and an option's name of commands, the demo, the self-test; besides them studies and figures."""


@pytest.mark.parametrize(
    "module",
    [
        m for m in MODULES
        if not m.startswith(("families", "autotune.studies", "plots")) and m not in NAMES_FAMILIES
    ],
)  # fmt: skip
def test_no_family_is_named_where_all_are_meant(module):
    named = [
        node.value
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and node.value in families.BUILT_IN and node.value != "persistent"
    ]
    assert not named, f"tritonmm.{module} names {named}: a family is known in its folder and the registry alone"


def test_no_module_imports_itself_in_a_circle():
    graph = {
        module: set(imports(tree(module), MODULES, everywhere=False)) - {module, ""}
        for module in MODULES
        if module  # tritonmm itself imports its names when they are asked for
    }
    # A package's module may ask for a sibling by the package's name.
    packages = {module for module in graph if MODULES[module].name == "__init__.py"}
    inside = {m: {x for x in found if not (x in packages and m.startswith(f"{x}."))} for m, found in graph.items()}
    graphlib.TopologicalSorter(inside).prepare()


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "cli" and m != "cli.tour"])
def test_commands_import_what_is_slow_inside(module):
    above = set(imports(tree(module), MODULES, everywhere=False))
    assert {part(x) for x in above} <= {"cli", "version"}


def test_no_file_is_longer_than_500_lines():
    long = {}
    for folder in ("tritonmm", "autotune", "plots", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > 500:
                long[str(path.relative_to(ROOT))] = lines
    assert not long


def test_the_wheel_has_every_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent for top in ("tritonmm", "autotune", "plots") for path in (ROOT / top).rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    found = {name if name.startswith("tritonmm") else f"tritonmm.{name}" for name in names}
    assert found <= set(listed), f"pyproject.toml does not list {found - set(listed)}"


def test_tritons_cache_knows_every_folder_with_kernels():
    kernels = [path for path in (ROOT / "tritonmm").rglob("*.py") if "jit\ndef " in path.read_text(encoding="utf-8")]
    assert len(kernels) > 30
    assert {path.relative_to(ROOT / "tritonmm").parts[0] for path in kernels} == set(KERNELS)
