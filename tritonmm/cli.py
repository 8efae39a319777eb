"""The `tritonmm` command. Everything slow is imported by the command that needs it."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

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


class _Parsed(click.ParamType):
    """A value made of text by `parse`, whose ValueError is the user's."""

    def __init__(self, name: str, parse: Callable[[str], object]):
        self.name = name
        self._parse = parse

    def convert(self, value, param, ctx):
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _size(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise ValueError(f"{text.strip()!r} is not a whole number above 0")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_size(part) for part in text.split(",")))


def _grid(text: str) -> tuple[int, int]:
    tiles_m, by, tiles_n = text.partition("x")
    if not by:
        raise ValueError(f"{text!r} is not a grid; it is rows x columns of tiles, as in 8x5")
    return _size(tiles_m), _size(tiles_n)


def _order(text: str):
    from tritonmm import orders

    return orders.parse(text)


def _tile_orders(text: str):
    from tritonmm.autotune import space

    return space.tile_orders(text)


def _blocks(text: str):
    from tritonmm.autotune import space

    return tuple(space.blocks(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.split("x")
    if len(sizes) != 3:
        raise ValueError(f"{text!r} is not a product; it is M x N x K, as in 4096x4096x4096")
    return tuple(_size(size) for size in sizes)


def _config(text: str):
    from tritonmm.config import Config

    return Config.from_json(text)


def _layout(text: str):
    from tritonmm.layouts import show

    return show.parse(text)


def _gpu(text: str):
    from tritonmm import gpu

    return gpu.spec(text)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="tritonmm")
def main() -> None:
    """Matrix products in Triton, with the order of the output tiles as a first-class value."""


@main.command()
@click.option("--m", "ms", type=_Parsed("sizes", _sizes), default="1000,2048,2049,4096", help="Rows of A, a list.")
@click.option("--n", type=_Parsed("size", _size), default="4096", help="Columns of B.")
@click.option("--k", type=_Parsed("size", _size), default="4096", help="Columns of A, rows of B.")
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32", "tf32"]), default="bf16")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nt")
@click.option("--kernel", default="tile", help="Kernel family.")
@click.option("--blocks", type=_Parsed("blocks", _blocks), help="Tiles, as in 128x256x64,64x128x64.")
@click.option("--stages", type=_Parsed("counts", _sizes), help="Steps of K in flight, as in 3,4.")
@click.option("--warps", type=_Parsed("counts", _sizes), help="Warps of a program, as in 4,8.")
@click.option("--orders", "tile_orders", type=_Parsed("orders", _tile_orders), help="As in row-major,swizzle-merge:8.")
@click.option("--factors", type=_Parsed("factors", _sizes), help="Adds swizzle-merge of each factor, as in 1,2,4,8.")
@click.option("--persistent/--plain", default=False, help="One program an SM, or one a tile.")
@click.option(
    "--regime", type=click.Choice(["burst", "sustained"]), default="burst", help="A rested GPU or a busy one."
)
@click.option("--counters", is_flag=True, help="Count DRAM and L2 traffic too, with NVIDIA's profiler ncu.")
@click.option("--gpu", type=_Parsed("name", _gpu), help="Model this GPU instead of measuring one.")
@click.option(
    "--store", "store_path", type=click.Path(path_type=Path), help="SQLite file; sweeping again continues it."
)
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Export this sweep's trials.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def sweep(
    ms, n, k, dtype, layout, kernel, blocks, stages, warps, tile_orders, factors, persistent, regime, counters, gpu,
    store_path, csv_path, as_json,
):  # fmt: skip
    """Check and time every config on every problem, into a store and a CSV file.

    Without a GPU, times come from the model, and each config is checked in Triton's interpreter on
    a smaller problem. Exits with 1 if a trial was wrong or failed, or if nothing could be counted.
    """
    source = _source(gpu, regime)
    if counters and source.source == "model":
        raise click.UsageError("--counters: only what runs on a GPU is counted, and these times come from the model")
    from tritonmm.autotune import report, space
    from tritonmm.autotune import sweep as sweeping
    from tritonmm.autotune.store import Store, StoreError, write_csv
    from tritonmm.orders import SwizzleMerge

    asked = {"blocks": blocks, "stages": stages, "warps": warps}
    if tile_orders or factors:
        asked["tile_orders"] = (tile_orders or ()) + tuple(SwizzleMerge(f) for f in factors or ())
    lists = {name: value for name, value in asked.items() if value}
    try:
        configs = list(dict.fromkeys(space.Space(kernels=(kernel,), persistent=(persistent,), **lists)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    problems = [space.problem(m, n, k, dtype=dtype, layout=layout) for m in ms]

    trials = []
    store_path = store_path or default_store()
    try:
        with Store(store_path) as store:
            report.announce(source)
            with report.Progress(len(problems) * len(configs)) as progress:
                for trial, new in sweeping.sweep(problems, configs, store, source):
                    trials.append(trial)
                    progress.advance(trial, new)
            uncounted = ""
            if counters:
                trials, uncounted = _counted(trials, store, source.environment)
        if csv_path:
            write_csv(csv_path, trials, source.environment)
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except sweeping.DeviceLostError as error:
        click.echo(f"tritonmm: {error}; the same command continues after it", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        done = f"{len(trials)} of {len(problems) * len(configs)} trials are in {store_path}"
        click.echo(f"tritonmm: interrupted; {done}, and the same command continues", err=True)
        sys.exit(130)

    outcome = report.outcome(trials, source, store_path, csv_path)
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
    else:
        report.show(outcome)
    sys.exit(1 if outcome["wrong"] or outcome["failed"] or uncounted else 0)


@main.command()
@click.option("--suite", default="public", help="A suite by name, or a JSON file like it.")
@click.option(
    "--family",
    "families",
    type=_Parsed("families", _words),
    help="Only these families of the suite, as in square,prefill.",
)
@click.option("--shape", type=_Parsed("shape", _shape), help="One product instead of a suite, as in 4096x4096x4096.")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nt", help="Of --shape.")
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32", "tf32"]), default="bf16", help="Of --shape.")
@click.option("--batch", type=_Parsed("size", _size), default="1", help="Of --shape.")
@click.option("--config", type=_Parsed("config", _config), help="Use this config, as JSON, instead of choosing one.")
@click.option(
    "--regime", type=click.Choice(["burst", "sustained", "both"]), default="both", help="A rested GPU or a busy one."
)
@click.option("--csv", "csv_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows as they come.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def bench(suite, families, shape, layout, dtype, batch, config, regime, csv_path, as_json) -> None:
    """Measure tritonmm beside torch on every product of a suite.

    A ratio is torch's time over ours, round by round in one process, and the median of the rounds.
    Every result is checked before it is timed. Exits with 1 if one is wrong or fails.
    """
    from tritonmm.autotune import bench as benching
    from tritonmm.autotune import suite as suites

    try:
        if shape:
            m, n, k = shape
            entries = (suites.Entry("shape", m, n, k, batch, layout, dtype),)
        else:
            _refuse("layout", "dtype", "batch", why="it goes with --shape; a suite says it for each product")
            entries = suites.load(suite)
        if families:
            entries = suites.of_families(entries, families)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    rivals = _rivals()
    from tritonmm.select import choose

    in_use = rivals.card.in_use()
    if in_use:
        click.echo(f"tritonmm: the GPU is not idle, and times will not hold: {in_use}", err=True)
    comments = [*rivals.environment.comments(), "# source: gpu", f"# suite: {'none' if shape else suite}"]
    comments.append(f"# gpu in use: {in_use or 'no'}")
    regimes = ("burst", "sustained") if regime == "both" else (regime,)
    rows = []
    code = 0
    try:
        with benching.ResultsFile(csv_path, comments) if csv_path else contextlib.nullcontext() as results:
            if not as_json:
                click.echo(benching.HEADER)
            for row in benching.bench(entries, regimes, rivals, (lambda *_: config) if config else choose):
                rows.append(row)
                if results:
                    results.add(row)
                if not as_json:
                    click.echo(str(row))
    except OSError as error:
        raise click.ClickException(str(error)) from None
    except benching.DeviceLostError as error:
        click.echo(f"tritonmm: {error}; the products after it are not measured", err=True)
        code = 1
    except KeyboardInterrupt:
        click.echo(f"tritonmm: interrupted after {len(rows)} of {len(entries) * len(regimes)} rows", err=True)
        code = 130
    if as_json:
        click.echo(benching.outcome(rows, rivals.environment, in_use))
    else:
        click.echo("")
        for mean in benching.means(rows):
            click.echo(str(mean))
    sys.exit(code or int(any(row.status in ("wrong", "failed") for row in rows)))


@main.command()
@click.argument("m", type=_Parsed("m", _size))
@click.argument("n", type=_Parsed("n", _size))
@click.argument("k", type=_Parsed("k", _size))
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32", "tf32"]), default="bf16")
@click.option("--layout", type=click.Choice(["nn", "nt", "tn", "tt"]), default="nt")
@click.option("--batch", type=_Parsed("size", _size), default="1")
@click.option("--gpu", type=_Parsed("name", _gpu), help="A GPU by name.  [default: this machine's, or the h200]")
def explain(m, n, k, dtype, layout, batch, gpu) -> None:
    """Print how a product of m x k by k x n is computed, and why: explain 2049 8192 3584 --layout nt."""
    from tritonmm.explanation import Explanation
    from tritonmm.problem import Problem

    name, precision = ("fp32", "tf32") if dtype == "tf32" else (dtype, "ieee")
    problem = Problem.dense(m, n, k, batch=batch, dtype=name, layout=layout, precision=precision)
    try:
        click.echo(str(Explanation.of(problem, gpu)))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@main.command()
@click.argument("order", type=_Parsed("order", _order))
@click.option("--grid", type=_Parsed("grid", _grid), default="8x8", help="Rows x columns of tiles.")
@click.option("--png", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
def order(order, grid, png) -> None:
    """Print when each tile of a grid is visited: order swizzle-merge:3 --grid 8x5."""
    when = {tile: i for i, tile in enumerate(map(tuple, order.visit(*grid).tolist()))}
    width = len(str(max(when.values())))
    for m in range(grid[0]):
        click.echo(" ".join(f"{when[m, n]:{width}}" for n in range(grid[1])))
    overflow = order.launched(*grid) - grid[0] * grid[1]
    click.echo(f"{order} on {grid[0]} x {grid[1]} tiles: {order.launched(*grid)} programs, {overflow} of them overflow")
    if png:
        visit = _plots("visit")
        for path in visit.draw([order], *grid, png):
            click.echo(path)


@main.command()
@click.argument("name", type=_Parsed("layout", _layout))
@click.option("--tile", type=_Parsed("tile", _grid), default="8x64", help="Rows x columns that a swizzle is put on.")
@click.option("--dtype", type=click.Choice(["f8", "f16", "bf16", "f32", "f64"]), default="f16", help="Of the tile.")
@click.option("--out", type=click.Path(path_type=Path), help="Draw it too, as PNG and SVG.")
def layout(name, tile, dtype, out) -> None:
    """Print a swizzle's banks and conflicts, or who holds what of a tensor-core instruction.

    NAME is "swizzle<3,3,3>", as CuTe spells Swizzle<B,M,S>, or an atom such as SM80_16x8x16_F16F16F16F16_TN.
    """
    from tritonmm.layouts import Swizzle, show

    if not isinstance(name, Swizzle):
        _refuse("tile", "dtype", why="it goes with a swizzle; an atom says it itself")
    try:
        shown = show.SwizzledTile(name, *tile, show.ELEM_BITS[dtype]) if isinstance(name, Swizzle) else name
        click.echo("\n".join(show.lines(shown)))
        for path in _plots("layouts").draw(shown, out) if out else ():
            click.echo(path)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=".", help="Folder for the figures.")
def plot(results, out) -> None:
    """Draw the results of a sweep: plot sweep.csv --out figures.

    Hit rate, traffic and throughput against the swizzle factor, the orders compared, the model against
    the counters, and the cost of overflow, each as PNG and SVG. What the results have no data for is
    left out, and said.
    """
    plots = _plots()
    try:
        frame, about = plots.read_csv(results)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    written = []
    for name in ("factors", "comparison", "validation", "overflow"):
        try:
            written += _plots(name).draw(frame, about, out / f"{results.stem}-{name}")
        except ValueError as error:
            click.echo(f"tritonmm: no {name} figure: {error}", err=True)
    for path in written:
        click.echo(path)
    sys.exit(0 if written else 1)


@main.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default="demo-out", help="Folder for its files."
)
def demo(out) -> None:
    """The tour: a ragged product, a sweep of swizzle factors, the figures.

    On a GPU with real times, in less than a minute; without one in Triton's interpreter and with
    modelled times, in less than three.
    """
    source = _source(None, "burst")
    _plots()
    from tritonmm import tour

    sys.exit(tour.run(source, out))


@main.command()
def doctor() -> None:
    """Print the versions, the GPU and where files are kept."""
    import platform

    import torch
    import triton

    from tritonmm import gpu
    from tritonmm.autotune.environment import Environment

    found = torch.cuda.is_available()
    here = Environment.here(torch.cuda.get_device_name() if found else "")
    modelled = gpu.default()
    lines = {
        "tritonmm": here.tritonmm + (f" at {here.commit}" if here.commit else ""),
        "python": platform.python_version(),
        "torch": here.torch,
        "triton": here.triton,
        "cuda": here.cuda or "none",
        "driver": here.driver or "none",
        "gpu": here.gpu or f"none: kernels run in Triton's interpreter, times are modelled for {modelled.name}",
        "models": f"{modelled.name}: {'compared' if modelled.verified else 'not compared'} with counters of this GPU",
        "sweep store": str(default_store()),
        "triton cache": triton.knobs.cache.dir,
    }
    for name, value in lines.items():
        click.echo(f"{name:>12}  {value}")


def default_store() -> Path:
    """Where sweeps are kept unless a file is named."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("tritonmm")) / "sweep.sqlite"


def _counted(trials, store, environment):
    """The trials with their counters, and why nothing could be counted, "" if something was."""
    from tritonmm.autotune import counters

    def warn(message: str) -> None:
        click.echo(f"tritonmm: {message}", err=True)

    click.echo("Counting with ncu.", err=True)
    try:
        return counters.join(trials, store, environment, warn=warn), ""
    except counters.CountersError as error:
        warn(f"no counters: {error}; the times are kept, and the same command counts what is missing")
        return trials, str(error)


def _plots(name: str = ""):
    """tritonmm.plots, or its module `name`; what it draws with is an extra."""
    import importlib

    try:
        return importlib.import_module("tritonmm.plots" + (f".{name}" if name else ""))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"figures need {error.name}: pip install 'tritonmm[plot]'") from None


def _source(modelled, regime: str):
    """Where the times come from: the GPU, unless there is none or `modelled` names one."""
    import torch

    measured = modelled is None and torch.cuda.is_available()
    if not measured:
        _interpret()
    from tritonmm import gpu
    from tritonmm.autotune.sources import GpuSource, ModelSource

    try:
        return GpuSource(regime) if measured else ModelSource(modelled or gpu.spec("h200"))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None


def _refuse(*names: str, why: str) -> None:
    """Options that were given and would be ignored are the user's error."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name}: {why}")


def _rivals():
    """The GPU, to measure on."""
    import torch

    if not torch.cuda.is_available():
        raise click.ClickException("bench measures and needs a GPU; without one `tritonmm sweep` gives modelled times")
    from tritonmm.autotune.sources import GpuSource

    try:
        return GpuSource()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None


def _interpret() -> None:
    """Have kernels run in Triton's interpreter.

    That is decided where they are first imported. If that has happened, the command begins again in
    a process that knows from the start.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from tritonmm.plan import INTERPRETED

    if not INTERPRETED:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
