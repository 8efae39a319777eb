"""tritonmm: a GEMM library in Triton and Gluon, in which the order of the output tiles is a value.

The public names are those of `tritonmm.public`. They are imported when one of them is first used, or at once where
torch is imported already: torch takes seconds to import, and `tritonmm --help` needs none of it.
"""

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonmm.public import *  # noqa: F403
    from tritonmm.public import __all__ as __all__


def __getattr__(name: str) -> object:
    if importlib.util.find_spec(f"{__name__}.{name}"):  # a module: `tritonmm.orders` needs no torch
        return importlib.import_module(f"{__name__}.{name}")
    public = importlib.import_module(f"{__name__}.public")
    globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return importlib.import_module(f"{__name__}.public").__all__


if "torch" in sys.modules:  # exported programs name torch.ops.tritonmm.product, which must be defined then
    __getattr__("__all__")
