"""tritonmm: matrix products in Triton, with the order of the output tiles as a first-class value.

The names are those of `tritonmm.public`. They are imported at the first touch of one, or at once where torch is there
already: torch takes seconds to import, and `tritonmm --help` needs none of it.
"""

import importlib.util
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonmm.public import *  # noqa: F403
    from tritonmm.public import __all__ as __all__


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # `tritonmm.select` is the function. The import system binds the module of that name here when it is imported.
        if name != "select" or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name != "select" and importlib.util.find_spec(f"{__name__}.{name}"):  # a module, such as orders, needs less
        return importlib.import_module(f"{__name__}.{name}")
    public = importlib.import_module(f"{__name__}.public")
    globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *importlib.import_module(f"{__name__}.public").__all__]


if "torch" in sys.modules:  # torch.ops.tritonmm, which exported programs name, is then there too
    __getattr__("__all__")
