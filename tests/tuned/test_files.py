"""Files that are written: whole or not at all, through links, and never in the place of a device or a pipe."""

import os
import stat
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from threads import most_inside

from tritonmm.cli import main, needs
from tritonmm.tuned import files

MODES = {"w": "new\n", "wb": b"new\n"}


def write(path, mode="w"):
    with files.written(path, mode) as file:
        file.write(MODES[mode])


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", MODES)
def test_a_link_stays_and_its_target_is_written(tmp_path, mode):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "r.csv", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write(link, mode)
    assert link.readlink() == target
    assert target.read_text() == "new\n"
    target.unlink()
    write(link, mode)
    assert (link.is_symlink(), target.read_text()) == (True, "new\n")
    assert sorted(tmp_path.rglob("*")) == [target.parent, target, link]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path, umask):
    write(tmp_path / "r.csv")
    assert mode_of(tmp_path / "r.csv") == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o646], ids=oct)
def test_an_old_file_keeps_its_mode(tmp_path, umask, mode):
    path = tmp_path / "r.csv"
    path.write_text("old")
    path.chmod(mode)
    write(path)
    assert (mode_of(path), path.read_text()) == (mode, "new\n")


def test_what_is_not_finished_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("old")

    def interrupted():
        with files.written(path) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", MODES)
def test_a_pipe_is_written_and_stays(tmp_path, mode):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.check_writable(pipe)  # waits for no reader, and takes none away
    write(pipe, mode)
    reader.join()
    assert read == ["new\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


PRINTS = """
import sys
from tritonmm.tuned import files
print("before", flush=True)
files.check_writable("/dev/stdout")
with files.written("/dev/stdout") as file:
    file.write("new\\n")
with files.opened("/dev/stdout") as file:
    file.write("more\\n")
print("after")
"""


@pytest.mark.parametrize("printed", ["pipe", "file"])
def test_results_in_the_standard_output_stand_between_what_is_printed(tmp_path, printed):
    command, path = [sys.executable, "-c", PRINTS], tmp_path / "out"
    if printed == "file":
        with path.open("w") as file:
            subprocess.run(command, stdout=file, check=True)
        said = path.read_text()
    else:
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.splitlines() == ["before", "new", "more", "after"]


UNWRITABLE = {
    "folder": lambda path: path.mkdir(),
    "below-a-file": lambda path: None,
    "long-name": lambda path: None,
    "link-to-itself": lambda path: path.symlink_to(path),
}


@pytest.fixture(params=UNWRITABLE)
def unwritable(request, tmp_path):
    path = tmp_path / "r.csv"
    UNWRITABLE[request.param](path)
    match request.param:
        case "below-a-file":
            path.write_text("old")
            return path / "r.csv"
        case "long-name":
            return tmp_path / ("x" * 300)
    return path


def test_what_cannot_be_written_is_known_before(unwritable, tmp_path):
    before = sorted(tmp_path.iterdir())
    for attempt in (files.check_writable, write):
        with pytest.raises(OSError, match=unwritable.name[:20]):
            attempt(unwritable)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everything")
def test_a_file_without_permission_is_not_replaced(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("old")
    path.chmod(0o444)
    for attempt in (files.check_writable, write):
        with pytest.raises(PermissionError, match=r"r\.csv"):
            attempt(path)
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    for attempt in (files.check_writable, write):
        with pytest.raises(PermissionError, match=r"r\.csv"):
            attempt(path)
    assert path.read_text() == "old"


def test_the_check_leaves_nothing(tmp_path):
    files.check_writable(tmp_path / "new" / "folder" / "r.csv")
    assert list(tmp_path.iterdir()) == []


def never(*_, **__):
    raise AssertionError("something is measured")


@pytest.mark.parametrize("command", ["sweep", "bench", "tune", "tune --parquet"])
def test_an_unwritable_file_is_refused_before_anything_is_measured(unwritable, monkeypatch, command):
    for name in ("source", "gpu_source", "module"):
        monkeypatch.setattr(needs, name, never)
    name, _, option = command.partition(" ")
    result = CliRunner().invoke(main, [name, option or "--csv", str(unwritable)])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert unwritable.name[:20] in result.stderr


def test_a_lock_neither_follows_a_link_nor_truncates(tmp_path):
    table, lock, other = (tmp_path / name for name in ("t.json", "t.json.lock", "precious"))
    other.write_text("precious")
    lock.symlink_to(other)
    with pytest.raises(OSError, match=r"t\.json\.lock is a link"), files.locked(table):
        pass
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(OSError, match="not a regular file"), files.locked(table):
        pass
    lock.unlink()
    lock.write_text("something")
    with files.locked(table):
        pass
    assert (other.read_text(), lock.read_text()) == ("precious", "something")


def test_one_writer_at_a_time(tmp_path):
    assert most_inside(lambda: files.locked(tmp_path / "t.json")) == 1
