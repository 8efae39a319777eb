"""`tritonmm explain`."""

import click

from tritonmm.cli import values
from tritonmm.cli.values import Parsed


@click.command()
@click.argument("m", type=Parsed("m", values.size))
@click.argument("n", type=Parsed("n", values.size))
@click.argument("k", type=Parsed("k", values.size))
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nt")
@click.option("--batch", type=Parsed("size", values.size), default="1")
@click.option("--gpu", type=Parsed("name", values.gpu), help="A GPU by name.  [default: this machine's, or the h200]")
def explain(m, n, k, dtype, layout, batch, gpu) -> None:
    """Print how a product of m x k by k x n is computed, and why: explain 2049 8192 3584 --layout nt."""
    from tritonmm.explanation import Explanation
    from tritonmm.problem import KINDS, Problem

    problem = Problem.dense(m, n, k, batch=batch, layout=layout, **KINDS[dtype])
    try:
        click.echo(str(Explanation.of(problem, gpu)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
