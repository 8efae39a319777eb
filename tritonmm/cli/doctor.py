"""`tritonmm doctor`."""

import dataclasses
import json
import sys

import click

from tritonmm.cli import needs

_END = """\b
Examples:
  tritonmm doctor
  tritonmm doctor --self-test --json
"""


@click.command(epilog=_END)
@click.option("--self-test", is_flag=True, help="Multiply with every kernel that runs here, and compare with float64.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(self_test, as_json) -> None:
    """Print versions, GPUs, paths of files, and what is wrong.

    Exits with 1 if something must be fixed, or if a result of the self-test is wrong.
    """
    import torch

    from tritonmm.autotune.doctor import checkup, selftest

    found, tested = [], []
    for finding in checkup.findings(needs.default_store()):
        found.append(finding)
        if not as_json:
            click.echo(f"{finding.name:>12}  {finding.value}")
            if finding.trouble:
                click.echo(f"{'':12}  {'WRONG' if finding.wrong else 'note'}: {finding.trouble}")
    if self_test:
        for outcome in selftest.outcomes(interpret=not torch.cuda.is_available()):
            tested.append(outcome)
            if not as_json:
                click.echo(f"{outcome.kernel:>12}  {outcome.status}: {outcome.product}, {outcome.said}")
    wrong = any(finding.wrong for finding in found) or any(each.status == "fail" for each in tested)
    if as_json:
        said = {"findings": found, "self_test": tested}
        listed = {name: [dataclasses.asdict(each) for each in several] for name, several in said.items()}
        click.echo(json.dumps({"ok": not wrong} | listed, indent=2))
    sys.exit(int(wrong))
