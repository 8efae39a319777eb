"""Models in several ways: torch alone, under `enable`, and with quantized weights, each compiled by torch or not."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import tritonmm
from tritonmm.autotune.serving import steps
from tritonmm.autotune.serving.models import Model
from tritonmm.nn.attention import SDPA, use_decode_attention_
from tritonmm.nn.quantize import KINDS

COMPILED = "+compile"
"""The suffix of ways whose model torch.compile compiles."""

HEAD = "+lm_head"
"""What follows the kind of a way that quantizes the output layer as well."""

ATTENTION = "+attention"
"""What follows in the name of a way whose model decodes with `nn.decode_attention`."""

_PLAIN = "torch", "enable", *KINDS

DEFAULT_WAYS = tuple(plain + end for plain in _PLAIN for end in ("", COMPILED))
"""enable and quantized models have `tritonmm.use()` around them."""

WAYS = tuple(
    plain + head + attention + end
    for plain in _PLAIN
    for head in (("", HEAD) if plain in KINDS else ("",))
    for attention in ("", ATTENTION)
    for end in ("", COMPILED)
)
"""All that can be asked for."""

PREFILL, DECODE = "prefill", "decode"

COLUMNS = "model", "way", "what", "ms", "tokens_per_s", "gigabytes", "kl", "message"


@dataclass(frozen=True)
class Row:
    """One step of one model in one way.

    what: "prefill" or "decode", and the tokens of the prefill or the number of sequences; "model" where the model
        itself could not be made, "logits" where those of a prompt could not be. ms: median of a step. tokens_per_s: of
        all sequences together. gigabytes: of the model's parameters and buffers. kl: mean Kullback-Leibler divergence
        of the next token's distribution from torch's, in nats, of a prompt that is not compiled. message: why there is
        no time, or "".
    """

    model: str
    way: str
    what: str
    ms: float | None = None
    tokens_per_s: float | None = None
    gigabytes: float | None = None
    kl: float | None = None
    message: str = ""

    def __str__(self) -> str:
        """One line, as the command prints while it measures."""
        known = self.message or f"{self.ms:9.3f} ms {self.tokens_per_s:10.1f} tokens/s"
        width = max(map(len, WAYS))
        return f"{self.model:<24} {self.way:<{width}} {self.what:<14} {known}"


class Asked(NamedTuple):
    """What is measured. layers: of each model, instead of its own number."""

    ways: Sequence[str] = DEFAULT_WAYS
    prefill: bool = True
    batches: Sequence[int] = (1, 16)
    layers: int | None = None

    @property
    def rows(self) -> int:
        """Rows of one model, if nothing fails."""
        return len(self.ways) * (self.prefill + len(self.batches))


def compare(model: Model, asked: Asked, device: torch.device) -> Iterator[Row]:
    """A row for each way and step, as soon as it is measured. What fails is a row with the reason, and the others go
    on."""
    title = model.title if asked.layers is None else f"{model.title.partition(',')[0]}, {asked.layers} layers"
    expected = None
    if any(way != "torch" for way in asked.ways):
        with _rows_of_failures(Row(title, "torch", "logits")) as failed:
            expected = _logits_of_torch(model, asked, device)
        _forget()
        yield from failed
    for way in asked.ways:
        yield from _in_one_way(title, model, way, asked, expected, device)
        _forget()


@torch.no_grad()
def _in_one_way(
    title: str, model: Model, way: str, asked: Asked, expected: torch.Tensor | None, device: torch.device
) -> Iterator[Row]:
    kind = _kind(way)
    made, kl = None, None
    with _rows_of_failures(Row(title, way, "model")) as failed:
        made = model.made(device, asked.layers)
        if kind in KINDS:
            tritonmm.quantize_(made, kind, skip=() if HEAD in way else ("lm_head",))
        if ATTENTION in way:
            made.set_attn_implementation(SDPA)
            use_decode_attention_(made)
    yield from failed
    if made is None or failed:
        return
    gigabytes = round(sum(x.numel() * x.element_size() for x in (*made.parameters(), *made.buffers())) / 1e9, 2)
    context: AbstractContextManager = contextlib.nullcontext() if kind == "torch" else tritonmm.use()
    with context:
        if expected is not None and way != "torch":
            with _rows_of_failures(Row(title, way, "logits", gigabytes=gigabytes)) as failed:
                kl = round(divergence(expected.to(device), logits(made, tokens(made, 1, device))), 6)
            yield from failed
        for what, count, measure in _measures(made, way, asked, device):
            row = Row(title, way, f"{what} {count}", gigabytes=gigabytes, kl=kl)
            with _rows_of_failures(row) as failed:
                ms = measure()
            if failed:
                yield from failed
            else:
                yield Row(title, way, row.what, round(ms, 3), round(1e3 * count / ms, 1), gigabytes, kl)
            _forget()


def _measures(
    model: torch.nn.Module, way: str, asked: Asked, device: torch.device
) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """What is timed: its name, tokens of a step, and a function that returns milliseconds."""

    def run() -> Callable[..., Any]:
        if not way.endswith(COMPILED):
            return model
        torch.compiler.reset()  # each step has code of its own, and none falls back because there is too much
        return torch.compile(model, dynamic=False, options=_options(way))

    def prefill() -> float:
        step, given = run(), tokens(model, 1, device, steps.PREFILL)
        return steps.timed(lambda: step(given, use_cache=False, logits_to_keep=1), device)

    def decode(batch: int) -> float:
        step, length = steps.decoder(model, run(), tokens(model, batch, device))
        before = length()
        ms = steps.timed(step, device)
        steps.check_cache(before, length())
        return ms

    if asked.prefill:
        yield PREFILL, steps.PREFILL, prefill
    for batch in asked.batches:
        yield DECODE, batch, lambda batch=batch: decode(batch)


def _kind(way: str) -> str:
    return way.partition("+")[0]


def _options(way: str) -> dict[str, Any] | None:
    """torch.compile's options for a way: of quantized models, what docs/quantized-models.md recommends."""
    if _kind(way) not in KINDS:
        return None
    return {"post_grad_custom_pre_pass": tritonmm.merge_siblings(), "triton.enable_pdl": True}


def tokens(model: torch.nn.Module, batch: int, device: torch.device, length: int = steps.PROMPT) -> torch.Tensor:
    """Random tokens, the same ones at each call, of (batch, length)."""
    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(model.config.vocab_size, (batch, length), device=device, generator=generator)


def _logits_of_torch(model: Model, asked: Asked, device: torch.device) -> torch.Tensor:
    """On the host, so that they take no memory from the ways."""
    made = model.made(device, asked.layers)
    return logits(made, tokens(made, 1, device)).cpu()


@torch.no_grad()
def logits(model: torch.nn.Module, prompt: torch.Tensor) -> torch.Tensor:
    """The logits of a prompt of one sequence, (tokens, words)."""
    return model(prompt, use_cache=False).logits[0]


def divergence(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Mean KL divergence of distributions of the next token, of logits (tokens, words)."""
    left, right = (torch.log_softmax(x.float(), -1) for x in (expected, found))
    return torch.nn.functional.kl_div(right, left, log_target=True, reduction="batchmean").item()


@contextlib.contextmanager
def _rows_of_failures(row: Row) -> Iterator[list[Row]]:
    """The row with the reason, if what is inside raises."""
    failed: list[Row] = []
    try:
        yield failed
    except Exception as error:
        name = "out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
        said = " ".join(f"{name}: {error}".split())[:300]
        failed.append(Row(row.model, row.way, row.what, None, None, row.gigabytes, row.kl, said.replace("#", "no. ")))


def _forget() -> None:
    """Frees what nothing uses any longer, compiled models as well."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
