"""`tritonmm run`: a program runs as Python runs it, with torch's matmuls taken over."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import tritonmm
from tritonmm.cli import main

PROGRAM = """
import sys
import beside
if __name__ == "__main__":
    print(sys.argv[1:], beside.VALUE, sys.modules["__main__"].__dict__ is globals())
"""


@pytest.fixture
def enabled(monkeypatch, tmp_path):
    """The calls of `enable`; sys.argv, sys.path and __main__ are put back."""
    found = []
    monkeypatch.setattr(tritonmm, "enable", lambda *args, **more: found.append((args, more)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    yield found
    sys.modules.pop("beside", None)


def call(*args):
    return CliRunner().invoke(main, args)


@pytest.mark.parametrize("program", [("program.py",), ("-m", "program")], ids=["file", "module"])
def test_a_program_gets_its_arguments_and_its_folder(program, enabled):
    found = call(
        "run", "--policy", "always", "--accumulation", "invariant", "--strict", *program, "-m", "--policy", "x"
    )
    assert found.exit_code == 0, found.output
    assert found.stdout == "['-m', '--policy', 'x'] 7 True\n"
    assert enabled == [(("always",), {"accumulation": "invariant", "strict": True})]


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise OSError('no such disk')", 1, "OSError: no such disk"),
        ("import click; raise click.UsageError('mine')", 1, "UsageError: mine"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_a_program_ends_as_without(line, code, printed, enabled, tmp_path, capsys):
    (tmp_path / "program.py").write_text(line)
    found = call("run", "program.py")
    assert found.exit_code == code
    assert printed in found.stderr
    assert "tritonmm" not in found.stderr, "as Python prints it: without the frames that ran it"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("missing.py",), "there is no file 'missing.py'"),
        (("--strict", "program.py"), "--strict is for --accumulation invariant"),
        (("--polcy", "always", "program.py"), "No such option"),
    ],
)
def test_wrong_requests(args, said, enabled):
    found = call("run", *args)
    assert found.exit_code == 2
    assert said in found.stderr
    assert not enabled


@pytest.mark.parametrize("name", ["nosuch", "nosuch.mod", "beside.mod", "package", "package.mod"])
def test_a_module_that_is_missing(name, enabled, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    found = call("run", "-m", name)
    sys.modules.pop("package", None)
    assert found.exit_code == 2
    assert found.stderr == f"tritonmm: there is no module {name!r}, or it is a package without __main__\n"


def test_a_package_that_lacks_a_module_shows_its_own_error(enabled, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import nosuch")
    found = call("run", "-m", "package.mod")
    assert found.exit_code == 1
    assert "ModuleNotFoundError: No module named 'nosuch'" in found.stderr


LATE = """
import atexit, os, pickle, sys, threading, time
class Mine: pass
def late():
    main_ended.wait()
    time.sleep(0.5)
    print(pickle.loads(pickle.dumps(Mine())).__class__ is Mine)
main_ended = threading.Event()
threading.Thread(target=late).start()
atexit.register(lambda: print(pickle.dumps(Mine()) != b""))
print(__name__, __package__, os.path.basename(sys.argv[0]), sys.path[0] == os.getcwd())
print(os.path.dirname(sys.executable) in sys.path)
os.chdir("/")
print(os.path.exists(__file__))
main_ended.set()
"""


@pytest.mark.parametrize("program", [("late.py",), ("-m", "late"), ("-m", "package"), ("package",)], ids=" ".join)
def test_a_program_sees_what_python_gives_it(program, tmp_path):
    """Also once its last line has run: threads and what atexit calls still pickle what __main__ has."""
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(
        LATE.split("main_ended = ")[0] + "print(__package__, __spec__.name)"
    )
    outputs = []
    for command in ((sys.executable,), (str(Path(sys.executable).with_name("tritonmm")), "run")):
        found = subprocess.run([*command, *program], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        outputs.append(found.stdout)
    assert outputs[0] == outputs[1]


def test_the_command_itself(tmp_path):
    path = tmp_path / "p.py"
    path.write_text("from tritonmm.torch_ops import mode\nprint(mode.required())\n")
    command = [sys.executable, "-m", "tritonmm", "run", "--accumulation", "invariant", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (found.stdout, found.returncode) == ("invariant\n", 0), found.stderr
