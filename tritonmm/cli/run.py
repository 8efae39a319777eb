"""`tritonmm run`."""

import os
import runpy
import sys

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
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(program)))
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except Exception:  # the program's: not an error in the request
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
