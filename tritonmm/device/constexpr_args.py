"""Compile-time arguments of kernels, as Triton's cache on disk has to know them."""

import functools
import hashlib
from pathlib import Path

KERNELS = "device", "families", "ozaki"
"""Folders of the package that have kernels, or what they consist of."""


class ConstexprArgs:
    """Base of the frozen dataclasses that are kernels' compile-time arguments.

    Triton files what it compiles under the kernel's source and, of such an argument, `cache_key`, or else its str: the
    fields. What the properties say of layouts, registers or slices would not count, and another version of tritonmm
    would find, and launch, what this one has left on the disk.
    """

    @property
    def cache_key(self) -> str:
        return f"{self} {digest()}"


@functools.cache
def digest() -> str:
    """Of all files in the folders that have kernels: properties ask functions in several of them."""
    package = Path(__file__).parents[1]
    files = [file for folder in KERNELS for file in sorted((package / folder).rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
