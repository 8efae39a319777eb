"""Mixture-of-experts models of transformers with and without `tritonmm.enable()`: losses, times of a step, and kernels.

    python -m tritonmm.autotune.studies.experts experts.csv

Random models of the shapes of Qwen3-30B-A3B and Mixtral 8x7B with fewer layers, in bf16, run their experts through
torch.nn.functional.grouped_mm. A step is forward and backward of 4096 tokens; another measurement generates tokens.
Needs transformers.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

import tritonmm
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.studies.csv_rows import Output, write_each

VOCABULARY = 32_000
STEPS = 7
"""Steps timed of each side, in turns."""

WARM_STEPS = 3

OURS = ("grouped_gemm", "tile_kernel")
"""Words in the names of our kernels of grouped products."""

TORCHS = ("GroupProblemShape", "grouped_mm", "GroupedGemm")
"""Words in the names of torch's."""


@dataclass(frozen=True)
class Row:
    """One model. Times are medians in milliseconds; losses of the same step; kernels: grouped products of a step, under
    `enable()`, that are ours and that are torch's."""

    model: str
    what: str
    torch_ms: float
    ours_ms: float
    ratio: float
    torch_loss: float | None
    ours_loss: float | None
    our_kernels: int
    torch_kernels: int


def models() -> Iterator[tuple[str, Any]]:
    """Names and configurations."""
    from transformers import MixtralConfig, Qwen3MoeConfig

    common = {"vocab_size": VOCABULARY, "num_attention_heads": 32, "max_position_embeddings": 4096}
    yield "Qwen3-30B-A3B, 4 layers", Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, intermediate_size=6144, num_hidden_layers=4, num_experts=128,
        num_experts_per_tok=8, num_key_value_heads=4, head_dim=128, norm_topk_prob=True, **common,
    )  # fmt: skip
    yield "Mixtral 8x7B, 2 layers", MixtralConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_local_experts=8, num_experts_per_tok=2,
        num_key_value_heads=8, **common,
    )  # fmt: skip


def measured(name: str, config: Any, device: torch.device) -> Iterator[Row]:
    """A step of training, and tokens that are generated."""
    from transformers import AutoModelForCausalLM

    torch.cuda.empty_cache()  # the model before is gone
    torch.manual_seed(0)
    with device:  # random numbers of billions of weights take minutes on the host
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens = torch.randint(VOCABULARY, (4, 1024), device=device)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        return loss.item()

    def generate() -> None:
        model.generate(tokens[:, :128], max_new_tokens=32, do_sample=False, pad_token_id=0)

    yield _compared(name, "step of 4096 tokens", step, step)
    model.eval()
    yield _compared(name, "generate 4 x 32 tokens", generate, None)


def _compared(name: str, what: str, run: Callable, loss: Callable[[], float] | None) -> Row:
    sides = {"torch": contextlib.nullcontext, "ours": tritonmm.use}
    losses: dict[str, float | None] = dict.fromkeys(sides)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side, context in sides.items():
        with context():
            for _ in range(WARM_STEPS):
                run()
            losses[side] = loss() if loss else None
    for _ in range(STEPS):
        for side, context in sides.items():
            with context():
                torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                torch.cuda.synchronize()
                times[side].append(1e3 * (time.perf_counter() - start))
    with tritonmm.use(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    ours, torchs = (sum(any(word in name for word in words) for name in names) for words in (OURS, TORCHS))
    medians = {side: statistics.median(found) for side, found in times.items()}
    return Row(
        name, what, round(medians["torch"], 2), round(medians["ours"], 2),
        round(medians["torch"] / medians["ours"], 4), losses["torch"], losses["ours"], ours, torchs,
    )  # fmt: skip


@click.command()
@click.argument("path", type=Output())
def main(path: Path) -> None:
    """Measure models of experts with and without tritonmm, and write PATH."""
    if not torch.cuda.is_available():
        raise click.ClickException("times need a GPU, and torch sees none")
    device = torch.device("cuda", 0)
    about = Environment.here(torch.cuda.get_device_name(0)).about()
    write_each(path, (row for name, config in models() for row in measured(name, config, device)), about)


if __name__ == "__main__":
    main()
