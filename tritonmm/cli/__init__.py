"""The `tritonmm` command, one module for each subcommand. Commands import what is slow only when they run."""

import io
import sys
import warnings
from collections.abc import Callable

import click

from tritonmm.cli import bench, demo, doctor, explain, layout, order, plot, run, serve_bench, sweep, tune
from tritonmm.version import __version__

REQUIRED = "torch", "triton", "numpy", "rich", "platformdirs"
"""Packages without which nothing works. What an extra installs has a hint of its own."""


class _Commands(click.Group):
    """Prints user errors, and files that cannot be read or written, as one line and exits with 2.

    An interruption exits with 130.
    """

    def main(self, *args, standalone_mode=True, **kwargs):
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            sys.exit(super().main(*args, standalone_mode=False, **kwargs))
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(2)
        except click.ClickException as error:
            click.echo(f"tritonmm: {error.format_message()}", err=True)
            sys.exit(2)
        except ModuleNotFoundError as error:
            if error.name not in REQUIRED:
                raise
            click.echo(f"tritonmm: {error.name} is not installed; tritonmm needs it", err=True)
            sys.exit(2)
        except OSError as error:
            click.echo(f"tritonmm: {error}", err=True)
            sys.exit(2)
        except click.Abort:
            click.echo("tritonmm: interrupted", err=True)
            sys.exit(130)


_END = """\b
Example: tritonmm explain 2049 8192 3584 --gpu h200
Exits with 1 if something is wrong, 2 for a wrong request, 130 if interrupted.
"""


@click.group(cls=_Commands, epilog=_END, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="tritonmm")
@click.pass_context
def main(context: click.Context) -> None:
    """GEMMs in Triton, with an explicit tile order."""
    if context.invoked_subcommand == run.run.name:
        return  # the program's own output
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names of files may have any characters
    context.with_resource(warnings.catch_warnings())
    warnings.showwarning = _shown_as_one_line(warnings.showwarning)


def _shown_as_one_line(shown: Callable) -> Callable:
    """Prints tritonmm's own warnings without the place in its code; others as `shown` does."""

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        if file is None and str(message).startswith("tritonmm: "):
            click.echo(message, err=True)
        else:
            shown(message, category, filename, lineno, file, line)

    return show


for command in (
    sweep.sweep, tune.tune, bench.bench, explain.explain, order.order, layout.layout, plot.plot, demo.demo,
    doctor.doctor, run.run, serve_bench.serve_bench,
):  # fmt: skip
    main.add_command(command)
