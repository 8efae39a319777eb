"""`tritonmm serve-bench`."""

import contextlib
import sys
from dataclasses import asdict

import click

from tritonmm.cli import needs, values
from tritonmm.cli.values import Parsed

MODELS = "Llama", "Qwen"

_END = """\b
Examples:
  tritonmm serve-bench
  tritonmm serve-bench --model Llama --ways torch+compile,int8+compile --batch 1,4,16 --csv serve.csv
"""


def _ways(text: str) -> tuple[str, ...]:
    from tritonmm.autotune.serving.compare import WAYS

    found = values.words(text)
    if unknown := [way for way in found if way not in WAYS]:
        raise ValueError(f"unknown are {', '.join(map(repr, unknown))}; known are {', '.join(WAYS)}")
    return found


@click.command("serve-bench", epilog=_END)
@click.option("--model", type=click.Choice(MODELS, case_sensitive=False), help="One model.  [default: both]")
@click.option(
    "--ways",
    type=Parsed("ways", _ways),
    help="A list of torch, enable, int8, int4, fp8 and fp8-dynamic; quantized ones also with +lm_head, to quantize the"
    " output layer; then each also with +attention, to decode with tritonmm's attention, and then with +compile."
    "  [default: all without +lm_head and +attention]",
)
@click.option("--prefill/--no-prefill", default=True, help="Whether a prefill of 2048 tokens is measured.")
@click.option("--batch", type=Parsed("sizes", values.sizes), default="1,16", help="Sequences that decode at once.")
@click.option("--layers", type=Parsed("size", values.size), help="Of each model, so that it fits a smaller GPU.")
@click.option("--csv", "csv_path", type=Parsed("file", values.output), help="Write the rows as they come.")
def serve_bench(model, ways, prefill, batch, layers, csv_path) -> None:
    """Measure language models with and without tritonmm.

    Random models of the shapes of Llama 3 8B and Qwen3-30B-A3B (with 8 layers), in bf16 and with quantized weights:
    tokens per second of a prefill and of decoding after 512 tokens, memory, and how far the next token's distribution
    is from torch's. Every step is replayed from a CUDA graph. Needs transformers and, with all layers of Llama, 24 GB.
    Compiled ways take minutes. Exits with 1 if a way fails; the others go on.
    """
    source = needs.gpu_source("serve-bench measures and needs a GPU")
    needs.module("transformers", "tritonmm[serve]", "serve-bench")
    from tritonmm.autotune.measuring.results_file import ResultsFile
    from tritonmm.autotune.serving import compare, report
    from tritonmm.autotune.serving.models import MODELS as KNOWN

    in_use = source.nvml.in_use()
    if in_use:
        click.echo(f"tritonmm: the GPU is not idle, so times are unreliable: {in_use}", err=True)
    comments = [*source.environment.comments(), "# source: gpu", f"# gpu in use: {in_use or 'no'}"]
    asked = compare.Asked(ways or compare.DEFAULT_WAYS, prefill, batch, layers)
    chosen = [KNOWN[model]] if model else list(KNOWN.values())
    rows = []
    interrupted = False
    try:
        with ResultsFile(csv_path, comments, compare.COLUMNS) if csv_path else contextlib.nullcontext() as results:
            for each in chosen:
                for row in compare.compare(each, asked, source.device):
                    rows.append(row)
                    click.echo(str(row), err=True)
                    if results:
                        results.add(asdict(row))
    except OSError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo(f"tritonmm: interrupted after {len(rows)} of {len(chosen) * asked.rows} rows", err=True)
        interrupted = True
    if rows:
        report.show(rows)
    sys.exit(130 if interrupted else int(any(row.message for row in rows)))
