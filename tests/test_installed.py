"""Modules of the README as a wheel has them: beside no checkout and no results, and never writing into themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder as pip fills it, of the sources that the wheel has."""
    site = tmp_path_factory.mktemp("site")
    for source, target in (("tritonmm", ""), ("autotune", "autotune"), ("plots", "plots")):
        skipped = shutil.ignore_patterns("results", "figures", "__pycache__")
        shutil.copytree(ROOT / source, site / "tritonmm" / target, ignore=skipped, dirs_exist_ok=True)
    return site


def run(site: Path, where: Path, *args) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *map(str, args)], cwd=where, env=env, capture_output=True, text=True)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("module", ["tritonmm", "tritonmm.autotune.studies.fit_l2", "tritonmm.plots"])
def test_help_is_all_that_it_does(module, site, tmp_path):
    before = files(site)
    done = run(site, tmp_path, "-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout
    assert files(tmp_path) == set()
    assert files(site) == before


@pytest.mark.parametrize("module", ["tritonmm.autotune.studies.fit_l2", "tritonmm.plots"])
@pytest.mark.parametrize("given", [False, True], ids=["no folder", "an empty folder"])
def test_what_a_checkout_has_is_asked_for_in_one_line(module, given, site, tmp_path):
    before = files(site)
    done = run(site, tmp_path, "-m", module, *(["--results", tmp_path] if given else []))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
    assert "autotune/results" in done.stderr
    assert files(tmp_path) == set()
    assert files(site) == before


def test_figures_are_drawn_where_the_user_is(site, tmp_path):
    """An exact figure alone: the measured ones take half a minute, and `.ci/dist` draws them."""
    before = files(site)
    code = (
        "from tritonmm.plots import __main__ as figures\n"
        "figures.exact = lambda folder: figures.visit.draw([figures.Hilbert()], 4, 4, folder / 'hilbert')\n"
        "figures.measured = lambda results, folder: []\n"
        f"figures.main(['--results', {str(ROOT / 'autotune' / 'results')!r}])\n"
    )
    done = run(site, tmp_path, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert {tmp_path / line for line in done.stdout.splitlines()} == files(tmp_path)
    assert {path.name for path in files(tmp_path / "figures")} == {"hilbert.png", "hilbert.svg"}
    assert files(site) == before
