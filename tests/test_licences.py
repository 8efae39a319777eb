"""Every dependency is in docs/licences.md with the licence that it has, and that licence goes with ours."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0"}
WEAK_COPYLEFT = {"MPL-2.0"}
"""Of tools that only development uses, and nothing of ours is derived from."""

PROPRIETARY = {"LicenseRef-NVIDIA-nvMatmulHeuristics-License"}
"""Of what development compares with, and nothing else needs."""

SAID = {
    "Apache-2.0": "Apache",
    "BSD-2-Clause": "BSD",
    "BSD-3-Clause": "BSD",
    "LicenseRef-NVIDIA-nvMatmulHeuristics-License": "^LicenseRef-NVIDIA-nvMatmulHeuristics-License$",
    "MIT": "MIT",
    "MPL-2.0": "MPL|Mozilla",
    "PSF-2.0": "PSF|Python Software Foundation",
}
"""How a package's metadata, of any age, calls each licence."""

TABLE = {
    name: (extras, licence)
    for name, extras, licence in re.findall(
        r"^\| ([\w-]+) \| ([\w, ]+) \| ([\w.-]+) \|$", (ROOT / "docs/licences.md").read_text(encoding="utf-8"), re.M
    )
    if name != "package"
}


def wanted() -> dict[str, set[str]]:
    """The dependencies of pyproject.toml, each with what it is needed for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for extra, requirements in {"tritonmm": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in requirements:
            name = re.match(r"[\w-]+", requirement)[0]
            if name != "tritonmm":
                found.setdefault(name, set()).add(extra)
    return found


def test_the_table_has_every_dependency_and_nothing_else():
    assert {name: set(extras.split(", ")) for name, (extras, _) in TABLE.items()} == wanted()


@pytest.mark.parametrize("name", TABLE)
def test_the_licence_is_what_the_package_says_and_goes_with_ours(name):
    extras, licence = TABLE[name]
    assert licence in PERMISSIVE or (licence in WEAK_COPYLEFT | PROPRIETARY and extras == "dev")
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    said = [metadata.get("License-Expression"), *(metadata.get_all("Classifier") or ()), metadata.get("License")]
    said = [text for text in said if text and (text[0] != "P" or "License" in text or "PSF" in text)]
    assert any(re.search(SAID[licence], text) for text in said), said
    assert not re.search(r"\bA?GPL", " ".join(said[:-1] or said))
