"""What commands need besides their options: a GPU or a model of one, figures, a store."""

import os
import sys
from pathlib import Path

import click


def distinct_files(**named: Path | None) -> None:
    """Refuses options that name one file."""
    found: dict[str, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        other = found.setdefault(os.path.realpath(path), option)
        if other != option:
            raise click.UsageError(f"--{other} and --{option} both are {path}; name different files")


def default_store() -> Path:
    """Path of the store of sweeps if no file is named."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("tritonmm")) / "sweep.sqlite"


def module(name: str, install: str, what: str) -> None:
    """Fails with a hint if the module `name`, which an extra installs, is missing."""
    import importlib.util

    if importlib.util.find_spec(name) is None:
        raise click.ClickException(f"{what} needs {name}: pip install '{install}'")


def plots(name: str = ""):
    """tritonmm.plots, or its module `name`. Fails with a hint if its packages are not installed."""
    import importlib

    try:
        return importlib.import_module("tritonmm.plots" + (f".{name}" if name else ""))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"figures need {error.name}: pip install 'tritonmm[plot]'") from None


def source(modelled, regime: str):
    """Where times come from: the GPU, or the model if there is none or `modelled` is a GPU's datasheet."""
    import torch

    measured = modelled is None and torch.cuda.is_available()
    if not measured:
        _interpret()
    from tritonmm import gpu
    from tritonmm.autotune.measuring.sources import GpuSource, ModelSource

    try:
        return GpuSource(regime) if measured else ModelSource(modelled or gpu.spec("h200"))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None


def refuse(*names: str, why: str) -> None:
    """Fails for options that were given although they would be ignored."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name) is not click.core.ParameterSource.DEFAULT
        if option.name in names and given:
            raise click.UsageError(f"{option.opts[0]}: {why}")


def gpu_source(why: str = "bench measures and needs a GPU; without one `tritonmm sweep` gives modelled times"):
    """The GPU to measure on. why: what is said where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise click.ClickException(why)
    from tritonmm.autotune.measuring.sources import GpuSource

    try:
        return GpuSource()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None


def _interpret() -> None:
    """Makes kernels run in Triton's interpreter.

    That is decided when they are first imported. If they are imported already, the command starts again in a process
    with the setting.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    from tritonmm.plan import INTERPRETED

    if not INTERPRETED:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
