"""`tritonmm explain`."""

import dataclasses
import json

import click

from tritonmm.cli import groups as grouped
from tritonmm.cli import values
from tritonmm.cli.values import Parsed

_END = """\b
Examples:
  tritonmm explain 2049 8192 3584 --dtype bf16 --layout nt
  tritonmm explain 4096 1536 2048 --layout nt --groups 128 --sizes zipf
  tritonmm explain 4096 4096 4096 --dtype fp64 --precision ozaki --gpu rtx4090 --json
"""


@click.command(epilog=_END)
@click.argument("m", type=Parsed("m", values.size))
@click.argument("n", type=Parsed("n", values.size))
@click.argument("k", type=Parsed("k", values.size))
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16", help=values.DTYPES_HELP)
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nn")
@click.option("--batch", type=Parsed("size", values.size), default="1", help="GEMMs of that size.")
@grouped.options
@click.option(
    "--sizes",
    type=Parsed("distribution", values.group_sizes),
    help="Of --groups: even, random, zipf, empties or one-hot, with a seed as in zipf:3.  [default: those to expect]",
)
@click.option("--accumulation", type=click.Choice(["any", "invariant"]), default="any")
@click.option(
    "--precision",
    help="Of fp32 and fp64, as in matmul(precision=): ozaki, tf32x3, ...  [default: that of --dtype]",
)
@click.option("--gpu", type=Parsed("name", values.gpu), help="A GPU by name.  [default: this machine's, or the h200]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def explain(m, n, k, dtype, layout, batch, groups, ragged, sizes, accumulation, precision, gpu, as_json) -> None:
    """Print how a GEMM of M x K by K x N is computed, and why.

    Needs no GPU, and computes nothing. Times and traffic are the model's, unless the problem was tuned.
    """
    from tritonmm.explanation import Explanation
    from tritonmm.problem import KINDS, Problem

    kind = KINDS[dtype] | ({"precision": precision} if precision else {})
    of_groups = grouped.fields(groups, ragged)
    try:
        problem = Problem.dense(m, n, k, batch=batch, layout=layout, accumulation=accumulation, **of_groups, **kind)
        if sizes:
            problem = grouped.sized(problem, sizes)
        found = Explanation.of(problem, gpu)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not as_json:
        click.echo(str(found))
        return
    said = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    said |= {
        "problem": dataclasses.asdict(problem),
        "gpu": found.gpu.name,
        "config": json.loads(found.config.to_json()),
        "warning": found.warning,
    }
    said["traffic"] = dataclasses.asdict(found.traffic) | {"hit_rate": found.traffic.hit_rate}
    click.echo(json.dumps(said, indent=2))
