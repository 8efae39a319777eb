"""`tritonmm doctor`."""

import click

from tritonmm.cli import needs


@click.command()
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
        "sweep store": str(needs.default_store()),
        "triton cache": triton.knobs.cache.dir,
    }
    for name, value in lines.items():
        click.echo(f"{name:>12}  {value}")
