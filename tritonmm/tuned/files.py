"""Writing files: a regular file is replaced in one step, through links; a device or pipe is written directly."""

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
    """A file to write, opened in `mode` "w" or "wb". It replaces `path` in one step at the end, unless an exception is
    raised.

    A link stays, and its target is replaced. A new file gets the umask's mode; an existing one keeps its mode. Devices
    and pipes are written directly, see `opened`. Raises OSError.
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
    """`path`, opened for writing from its beginning; its folder is created.

    If it is this process's standard output or error, such as /dev/stdout, writing continues after what was printed.
    """
    printing = _printing_to(path)
    if printing:
        return os.fdopen(os.dup(printing), mode, **_text(mode))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open(path, mode, **_text(mode))


def check_writable(path: str | os.PathLike) -> None:
    """Raises the OSError that writing `path` would raise. Leaves nothing behind."""
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
    """Excludes all other writers of the file, in this and other processes. Raises OSError.

    The lock is a second file, PATH.lock, because the file itself may be replaced meanwhile.
    """
    import fcntl  # imported here, because readers need no lock

    lock = path.with_name(path.name + ".lock")
    try:
        # Does not follow a link, truncate a file or wait for a pipe in the place of the lock.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(f"{lock} is a link, not a lock file; remove it") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{lock} is not a regular file; remove it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_stream(path: str | os.PathLike) -> bool:
    """True if `path` exists and must be written directly: a device, a pipe, or this process's standard output or error.

    Raises OSError for a folder and for a file without write permission.
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
    """Descriptor of this process's standard output or error if `path` is that file, else 0."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a closed descriptor
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
    return 0


def _new(folder: Path, wanted: Path) -> tuple[Path, int]:
    """A new file in the folder, with the umask's mode, and its descriptor. Errors name `wanted`."""
    path = folder / f"{wanted.name[:50]}.{secrets.token_hex(8)}.tmp"
    try:
        return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(wanted)) from None


def _text(mode: str) -> dict[str, Any]:
    return {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
