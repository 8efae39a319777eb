"""The `tritonmm` command, a module each subcommand. Everything slow is imported by the command that needs it."""

import sys

import click

from tritonmm.cli import bench, demo, doctor, explain, layout, order, plot, sweep, tune
from tritonmm.version import __version__


class _Commands(click.Group):
    """Errors of the user take one line and exit with 2, an interruption with 130."""

    def main(self, *args, standalone_mode: bool = True, **kwargs):
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **kwargs)
        try:
            sys.exit(super().main(*args, standalone_mode=False, **kwargs))
        except click.ClickException as error:
            click.echo(f"tritonmm: {error.format_message()}", err=True)
            sys.exit(2)
        except click.Abort:
            click.echo("tritonmm: interrupted", err=True)
            sys.exit(130)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="tritonmm")
def main() -> None:
    """Matrix products in Triton, with the order of the output tiles as a first-class value."""


for command in (
    sweep.sweep, tune.tune, bench.bench, explain.explain, order.order, layout.layout, plot.plot, demo.demo,
    doctor.doctor,
):  # fmt: skip
    main.add_command(command)
