"""Files that are written: a regular file in one step and through links, a device or a pipe as it is."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def written(path: str | os.PathLike, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write, open in `mode`, "w" or "wb". It becomes `path` in one step, and only if nothing is raised.

    A link stays, and its target is written. A new file has the mode that the umask leaves it, and an old one keeps its
    own. What is no regular file is written as it is, see `opened`. Raises OSError.
    """
    if _is_stream(path):
        with opened(path, mode) as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, descriptor = _new(path.parent, path)
    try:
        with os.fdopen(descriptor, mode, **_text(mode)) as file:
            yield file
            file.flush()
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def opened(path: str | os.PathLike, mode: str = "w") -> IO[Any]:
    """`path`, its folder made, open to be written from its beginning.

    What this process has as its standard output or error, as /dev/stdout, goes on behind what was printed.
    """
    printing = _printing_to(path)
    if printing:
        return os.fdopen(os.dup(printing), mode, **_text(mode))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open(path, mode, **_text(mode))


def check_writable(path: str | os.PathLike) -> None:
    """Raises the OSError of a `path` that could not be written. Leaves nothing behind."""
    if _is_stream(path):
        return
    folder = Path(os.path.realpath(path)).parent
    while not folder.exists():
        folder = folder.parent
    unfinished, descriptor = _new(folder, Path(path))
    os.close(descriptor)
    unfinished.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one writer of the file at a time, of all threads and processes. The file itself may be replaced meanwhile,
    so what is locked is another one beside it. Raises OSError."""
    import fcntl  # here, since reading needs none

    lock = path.with_name(path.name + ".lock")
    try:
        # No link is followed and nothing is truncated; a pipe in the place of the lock is not waited for.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{lock}: a link in the place of a lock; remove it") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{lock}: no regular file in the place of a lock; remove it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_stream(path: str | os.PathLike) -> bool:
    """Whether `path` is there and cannot be replaced: a device, a pipe, or where this process prints to.

    Raises OSError for a folder, and for what may not be written.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return not stat.S_ISREG(found.st_mode) or bool(_printing_to(path))


def _printing_to(path: str | os.PathLike) -> int:
    """The descriptor of this process's standard output or error, if it is the file at `path`, else 0."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # one of the two is not there
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
    return 0


def _new(folder: Path, wanted: Path) -> tuple[Path, int]:
    """A new file in the folder, with the mode that the umask leaves it, and its descriptor. Errors name `wanted`."""
    path = folder / f"{wanted.name[:50]}.{secrets.token_hex(8)}.tmp"
    try:
        return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(wanted)) from None


def _text(mode: str) -> dict[str, Any]:
    return {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
