"""Models of transformers with 16-, 8- and 4-bit weights: times of prefill and decoding, memory, and errors of logits.

    python -m tritonmm.autotune.studies.serving serving.csv

Random models of the shapes of Llama 3 8B and Qwen3-30B-A3B (with fewer layers), in bf16. Every step is replayed from a
CUDA graph, so that the host takes no part. Needs transformers and, with bf16 weights of 8 billion, 24 GB.
"""

import contextlib
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

import tritonmm
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.studies.csv_rows import Output, write_csv
from tritonmm.nn.quantize import KINDS

PREFILL = 2048
"""Tokens of a prefill, of one sequence."""

PROMPT, LONGEST = 512, 1024
"""Tokens before the first that is decoded, and those that the cache can hold."""

BATCHES = (1, 16)
"""Sequences that are decoded at once."""

ROUNDS, REPLAYS = 7, 20
"""Rounds, and steps of one: ROUNDS * REPLAYS + 3 tokens are decoded, which the cache has to hold."""

COMPILED = "+compile"
"""What the name of a way ends with, whose model torch.compile compiles."""

WAYS = ("torch", "torch+compile", "enable", *KINDS, *(kind + COMPILED for kind in KINDS))


@dataclass(frozen=True)
class Row:
    """One model in one way. ms: median of a step; tokens_per_s: of all sequences together; gigabytes: of the model's
    parameters and buffers; kl: mean Kullback-Leibler divergence of the next token's distribution from torch's, in
    nats, for a prefill."""

    model: str
    way: str
    what: str
    ms: float
    tokens_per_s: float
    gigabytes: float
    kl: float | None


def models() -> Iterator[tuple[str, Any]]:
    """Names and configurations."""
    from transformers import LlamaConfig, Qwen3MoeConfig

    yield "Llama 3 8B", LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128_256, max_position_embeddings=8192, rope_theta=500_000.0,
    )  # fmt: skip
    yield "Qwen3-30B-A3B, 8 layers", Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, intermediate_size=6144, num_hidden_layers=8, num_experts=128,
        num_experts_per_tok=8, num_key_value_heads=4, num_attention_heads=32, head_dim=128, norm_topk_prob=True,
        vocab_size=151_936, max_position_embeddings=8192,
    )  # fmt: skip


def made(config: Any, device: torch.device) -> torch.nn.Module:
    """The model with random weights, the same ones at each call."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@torch.no_grad()
def measured(name: str, config: Any, way: str, expected: torch.Tensor | None, device: torch.device) -> Iterator[Any]:
    """Rows of a model in one way, and first its logits of a prefill. expected: torch's, to compare with."""
    model = made(config, device)
    kind = way.removesuffix(COMPILED)
    if kind in KINDS:
        tritonmm.quantize_(model, kind)
    gigabytes = sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers())) / 1e9
    run: Callable[..., Any] = torch.compile(model) if way.endswith(COMPILED) else model
    context: AbstractContextManager = contextlib.nullcontext() if kind == "torch" else tritonmm.use()
    tokens = torch.randint(config.vocab_size, (max(BATCHES), PREFILL), device=device, generator=_generator(device))
    with context:
        logits = model(tokens[:1, :PROMPT], use_cache=False).logits[0].float()
        yield logits
        kl = None if expected is None else round(divergence(expected, logits), 6)
        del logits
        ms = timed(lambda: run(tokens[:1], use_cache=False, logits_to_keep=1), device)
        yield Row(name, way, f"prefill {PREFILL}", round(ms, 3), round(1e3 * PREFILL / ms, 1), round(gigabytes, 2), kl)
        for batch in BATCHES:
            ms = timed(decoder(model, run, tokens[:batch, :PROMPT]), device)
            tokens_per_s = round(1e3 * batch / ms, 1)
            yield Row(name, way, f"decode {batch}", round(ms, 3), tokens_per_s, round(gigabytes, 2), None)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(1)


def decoder(model: torch.nn.Module, run: Callable[..., Any], prompt: torch.Tensor) -> Callable[[], Any]:
    """A step that decodes one more token after a prompt."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=LONGEST)
    model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = prompt[:, -1:].clone()
    return lambda: run(token, past_key_values=cache, use_cache=True)


def divergence(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Mean KL divergence of distributions of the next token, of logits (tokens, words)."""
    left, right = (torch.log_softmax(x.float(), -1) for x in (expected, found))
    return torch.nn.functional.kl_div(right, left, log_target=True, reduction="batchmean").item()


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds of a replay of a step, the median of rounds."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / REPLAYS)
    return statistics.median(found)


@click.command()
@click.argument("path", type=Output())
@click.option("--ways", default=",".join(WAYS), show_default=True, help="A list.")
@click.option("--model", "part", default="", help="Only models with this in their names.")
def main(path: Path, ways: str, part: str) -> None:
    """Measure models with and without tritonmm, and write PATH."""
    asked = ways.split(",")
    if unknown := set(asked) - set(WAYS):
        raise click.UsageError(f"--ways has {', '.join(sorted(unknown))}; known are {', '.join(WAYS)}")
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
    device = torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    comments = [f"# {key}: {value}" for key, value in about.items()]
    rows: list[Row] = []
    for name, config in models():
        expected = None
        for way in asked if part in name else ():
            logits, *found = measured(name, config, way, expected, device)
            expected = logits if way == "torch" else expected
            for row in found:
                click.echo(row)
                rows.append(row)
            write_csv(path, rows, comments)  # what is measured is kept if this ends early
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
