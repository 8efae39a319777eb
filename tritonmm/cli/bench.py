"""`tritonmm bench`."""

import contextlib
import sys

import click

from tritonmm.cli import groups as grouped
from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

_END = """\b
Examples:
  tritonmm bench --shape 4096x4096x4096 --dtype fp16
  tritonmm bench --family square,prefill --regime both --csv bench.csv
  tritonmm bench --shape 4096x1536x2048 --layout nt --groups 128 --sizes zipf
"""


@click.command(epilog=_END)
@click.option("--suite", default="public", help="A suite by name, or a JSON file like it.")
@click.option(
    "--family",
    "families",
    type=Parsed("families", values.words),
    help="Only these families of the suite, as in square,prefill.",
)
@click.option("--shape", type=Parsed("shape", values.shape), help="One GEMM instead of a suite, as in 4096x4096x4096.")
@click.option(
    "--layout",
    type=click.Choice(["nn", "nt", "tn", "tt"]),
    default="nn",
    help="Of --shape; torch multiplies fp8 only as nt.",
)
@click.option("--dtype", type=Parsed("dtype", values.dtype), default="bf16", help=f"Of --shape: {values.DTYPES_HELP}")
@click.option("--batch", type=Parsed("size", values.size), default="1", help="Of --shape.")
@grouped.options
@click.option(
    "--sizes",
    type=Parsed("distribution", values.group_sizes),
    help="Of --groups: even, random, zipf, empties or one-hot, with a seed as in zipf:3.  [default: random]",
)
@click.option("--config", type=Parsed("config", values.config), help="Use this config, as JSON, for every GEMM.")
@click.option(
    "--regime",
    type=click.Choice(["burst", "short", "sustained", "both"]),
    default="both",
    help="burst: after a rest; sustained: at the power limit; both: these two; short: a faster burst for large suites.",
)
@click.option("--csv", "csv_path", type=Parsed("file", values.output), help="Write the rows as they come.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def bench(
    suite, families, shape, layout, dtype, batch, groups, ragged, sizes, config, regime, csv_path, as_json
) -> None:
    """Compare tritonmm with torch on a suite.

    A ratio is torch's time over ours: the median over rounds in one process. Every result is checked before it is
    timed. Exits with 1 if a result is wrong or a trial fails.
    """
    from tritonmm.autotune.bench import compare as benching
    from tritonmm.autotune.bench import suite as suites
    from tritonmm.autotune.measuring.results_file import ResultsFile

    try:
        if shape:
            needs.refuse("suite", "families", why="--shape is measured instead of a suite")
            m, n, k = shape
            of_groups = grouped.fields(groups, ragged)
            entries = (suites.Entry("shape", m, n, k, batch, layout, dtype, **of_groups, sizes=sizes or ""),)
        else:
            of_shape = ("layout", "dtype", "batch", "groups", "ragged", "sizes")
            needs.refuse(*of_shape, why="it goes with --shape; a suite has it for each entry")
            entries = suites.load(suite)
        if families:
            entries = suites.of_families(entries, families)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    source = needs.gpu_source()
    from tritonmm.autotune.measuring.precompile import precompile_all

    choosing = (lambda *_: config) if config else _choose

    in_use = source.nvml.in_use()
    if in_use:
        click.echo(f"tritonmm: the GPU is not idle, so times are unreliable: {in_use}", err=True)
    comments = [*source.environment.comments(), "# source: gpu", f"# suite: {'none' if shape else suite}"]
    comments.append(f"# gpu in use: {in_use or 'no'}")
    regimes = ("burst", "sustained") if regime == "both" else (regime,)
    rows = []
    code = 0
    precompile_all(_chosen(entries, source.gpu, choosing), source.gpu)
    try:
        with ResultsFile(csv_path, comments, benching.COLUMNS) if csv_path else contextlib.nullcontext() as results:
            if not as_json:
                click.echo(benching.HEADER)
            for row in benching.bench(entries, regimes, source, choosing):
                rows.append(row)
                if results:
                    results.add(row.row())
                if not as_json:
                    click.echo(str(row))
    except OSError as error:
        raise click.ClickException(str(error)) from None
    except benching.DeviceLostError as error:
        click.echo(f"tritonmm: {error}; later entries are not measured", err=True)
        code = 1
    except KeyboardInterrupt:
        click.echo(f"tritonmm: interrupted after {len(rows)} of {len(entries) * len(regimes)} rows", err=True)
        code = 130
    if as_json:
        click.echo(benching.outcome(rows, source.environment, in_use))
    else:
        click.echo("")
        for mean in benching.means(rows):
            click.echo(str(mean))
    sys.exit(code or int(any(row.status in ("wrong", "failed") for row in rows)))


def _choose(problem, gpu):
    """The config that tritonmm's functions use."""
    from tritonmm.selection import choose
    from tritonmm.torch_ops.grouped_product import chosen

    return (chosen if problem.ragged else choose)(problem, gpu)


def _chosen(entries, gpu, choosing) -> list:
    """The problems and their configs. The bench reports problems without a config."""
    found = []
    for entry in entries:
        problem = entry.problem()
        with contextlib.suppress(ValueError):
            found.append((problem, choosing(problem, gpu)))
    return found
