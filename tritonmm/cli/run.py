"""`tritonmm run`."""

import builtins
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from typing import Any

import click

_END = """\b
Examples:
  tritonmm run train.py --epochs 3
  tritonmm run --accumulation invariant --strict -m my.server --port 8000
  torchrun --nproc-per-node 8 --no-python tritonmm run train.py
"""


@click.command(epilog=_END, context_settings={"allow_interspersed_args": False})
@click.option("--policy", type=click.Choice(["faster", "always"]), default="faster", help="What tritonmm computes.")
@click.option("--accumulation", type=click.Choice(["any", "invariant"]), default="any", help="What its bits depend on.")
@click.option("--strict", is_flag=True, help="With invariant accumulation, make a GEMM that stays with torch an error.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, not a file.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(policy, accumulation, strict, is_module, program, arguments) -> None:
    """Run a Python program with `tritonmm.enable`.

    PROGRAM and its ARGUMENTS are what `python` would be given. Processes that it starts are not affected; launchers
    such as torchrun start `tritonmm run`.
    """
    import tritonmm

    if strict and accumulation == "any":
        raise click.UsageError("--strict is for --accumulation invariant")
    if not is_module and not os.path.exists(program):
        raise click.UsageError(f"there is no file {program!r}")
    tritonmm.enable(policy, accumulation=accumulation, strict=strict)
    sys.argv = [program, *arguments]
    if not sys.flags.safe_path:  # else Python adds no folder either
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program))
    try:
        if is_module:
            _run_module(program)
        else:
            _run_file(program)
    except _NoModuleError as error:
        raise click.UsageError(str(error)) from None
    except (Exception, KeyboardInterrupt) as error:  # the program's: not an error in the request
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


class _NoModuleError(Exception):
    """There is no such module to run."""


def _run_file(program: str) -> None:
    path = os.path.abspath(program)
    if path.endswith(".pyc") or pkgutil.get_importer(path) is not None:  # compiled, or a folder or an archive
        runpy.run_path(program, run_name="__main__")
        return
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, _become_main(__file__=path, __loader__=SourceFileLoader("__main__", path)))


def _run_module(program: str) -> None:
    try:
        spec = importlib.util.find_spec(program)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(program + ".__main__")
    except ModuleNotFoundError as error:
        if not f"{program}.".startswith(f"{error.name}."):  # an import of a package that has the module
            raise
        spec = None
    if spec is None or spec.origin is None:
        raise _NoModuleError(f"there is no module {program!r}, or it is a package without __main__")
    loader: Any = spec.loader
    sys.argv[0] = spec.origin
    names = {"__spec__": spec, "__package__": spec.parent, "__loader__": loader, "__file__": spec.origin}
    exec(loader.get_code(spec.name), _become_main(**names))


def _become_main(**names: object) -> dict:
    """The globals of a new `__main__`. It stays that until Python ends, for threads and what atexit calls: they find
    classes there that they pickle."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, **names)
    return vars(main)
