"""Every command and Python block of the README and the docs: those that need no GPU and little time run, others parse.

Blocks are fenced as python or bash, or indented by four spaces. `<!-- gpu -->` before a fenced block says that it needs
a GPU, as does "cuda" in it.
"""

import ast
import doctest
import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import tritonmm
from tritonmm.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = {"order", "explain", "layout"}
"""Commands that are run, besides a dry run of `tune`: the others measure, sweep or draw for long."""

OTHERS = {"git", "dask", "cd", "torchrun"}
"""Programs that are not ours."""

NEEDS_GPU = re.compile(r"cuda|\.enable\(|\bmodel\(")


def blocks(page: Path, language: str) -> list[tuple[str, bool]]:
    """The fenced blocks of a language, and whether each is said to need a GPU."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"(<!-- gpu -->\n)?^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(block[2], bool(block[1]) or bool(NEEDS_GPU.search(block[2]))) for block in found]


def commands(page: Path) -> list[list[str]]:
    """The words of every command: in bash blocks, and in indented ones that begin like a command."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block, _ in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    indented = re.findall(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+", text)
    lines += [line.strip() for block in indented for line in block.replace("\\\n", " ").splitlines()]
    words = [each for line in lines for each in split(line)]
    programs = {"tritonmm", "make", "pip", "python"} | OTHERS
    assert all(each[0] in programs for block, _ in blocks(page, "bash") for line in block.splitlines()
               for each in split(line) if not line.startswith(" ") and "=" not in each[0]), page  # fmt: skip
    return [each for each in words if each[0] in programs]


def split(line: str) -> list[list[str]]:
    """The commands of a line, without variables that are set before them, and comments; none if it is no command."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    parts = [list(part) for is_and, part in itertools.groupby(words, lambda word: word == "&&") if not is_and]
    return [part for each in parts if (part := list(itertools.dropwhile(lambda w: re.match(r"[A-Z_]+=", w), each)))]


def cases(of) -> list:
    return [pytest.param(page, case, id=f"{page.stem}-{i}") for page in PAGES for i, case in enumerate(of(page))]


@pytest.mark.parametrize(("page", "block"), cases(lambda page: blocks(page, "python")))
def test_python_runs_and_prints_what_it_says(page, block, capsys):
    code, needs_gpu = block
    tree = ast.parse(code)
    if needs_gpu:
        imported = {"torch": torch, "tritonmm": tritonmm}
        for node in ast.walk(tree):  # names of ours, at least, are there
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tritonmm":
                assert hasattr(imported["tritonmm"], node.attr), node.attr
        pytest.skip("needs a GPU: parsed")
    exec(compile(tree, str(page), "exec"), {"torch": torch, "tritonmm": tritonmm})
    printed = capsys.readouterr().out.splitlines()
    expected = [line.partition("  # ")[2] for line in code.splitlines() if line.startswith("print(")]
    assert len(printed) == len(expected)
    for found, said in zip(printed, expected, strict=True):
        assert said in ("", found)


@pytest.mark.parametrize(("page", "words"), cases(commands))
def test_commands_run_or_parse(page, words, tmp_path, monkeypatch):
    program, *args = words
    if program == "tritonmm":
        check_ours(args, tmp_path, monkeypatch)
    elif program == "make":
        check_make(args)
    elif program == "pip":
        check_pip(args)
    elif program == "python":
        check_python(args)


def check_ours(args: list[str], tmp_path: Path, monkeypatch) -> None:
    name, *rest = args
    assert name in main.commands, f"tritonmm {name}: no such command"
    if name == "plot":
        rest = [str(ROOT / "autotune/results/h200-factors.csv"), *rest[1:]]
    with main.commands[name].make_context(name, rest):
        pass
    if name in RUN or ("--dry-run" in rest and not any(word.endswith(".json") for word in rest)):
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        assert result.stdout


def check_make(args: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for arg in args:
        variable, is_set, value = arg.partition("=")
        if is_set:
            assert variable in ("T", "VENV", "PYTHON")
            if variable == "T":
                assert all((ROOT / file).exists() for file in value.split())
        else:
            assert arg in targets, f"make {arg}: no such target"


def check_pip(args: list[str]) -> None:
    assert args[0] == "install"
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(args)):
        assert all(re.search(rf"^{each} = ", extras, re.M) for each in extra.split(","))


def check_python(args: list[str]) -> None:
    if args[0] == "-c":
        exec(compile(args[1], "-c", "exec"), {})
    else:
        assert args[0] == "-m"
        assert importlib.util.find_spec(args[1]), f"python -m {args[1]}: no such module"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def modules_with_examples() -> list[str]:
    """Modules of the host with an example in a docstring."""
    found = []
    for name in ("tritonmm", "autotune"):
        for path in sorted((ROOT / name).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(ROOT).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                found.append(".".join(parts if name == "tritonmm" else ("tritonmm", *parts)))
    return found


@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_in_docstrings_print_what_they_say(module, device):
    """With their GPU replaced by the CPU where there is none."""
    finder, said = doctest.DocTestFinder(), []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in finder.find(importlib.import_module(module), extraglobs={"tritonmm": tritonmm, "torch": torch}):
        for example in test.examples:
            example.source = example.source.replace('device="cuda"', f'device="{device.type}"')
        runner.run(test, out=said.append)
    assert runner.tries
    assert not runner.failures, "".join(said)


def test_commands_are_found():
    assert sum(len(commands(page)) for page in PAGES) > 40
    assert any(words[:2] == ["tritonmm", "sweep"] for words in commands(ROOT / "README.md"))
