"""One step of a model, a prefill or a token of each sequence, and its time in a CUDA graph.

A graph excludes the host's time in every way: torch.compile's own CUDA graphs are off. Before the capture a step
runs three times, so that kernels are compiled. The third run and the capture fail if torch.compile or Triton compiles
anything: then a step would not be the same as the one before.

Each replay decodes one more token. The cache's length is in device memory, and the graph adds to it: transformers'
StaticCache does so to be compiled once for all positions. torch's attention reads all of the cache at every position,
`nn.decode_attention` what is filled. Every way decodes the same positions, which is checked.
"""

import contextlib
import inspect
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

PREFILL = 2048
"""Tokens of a prefill, of one sequence."""

PROMPT, LONGEST = 512, 1024
"""Tokens before the first that is decoded, and those that the cache can hold."""

WARM, ROUNDS, REPLAYS = 3, 7, 20
"""Steps before the capture, rounds, and steps of one: the cache has to hold WARM + ROUNDS * REPLAYS tokens more."""

Step = Callable[[], Any]


def decoder(
    model: torch.nn.Module, run: Callable[..., Any], prompt: torch.Tensor, longest: int = LONGEST
) -> tuple[Step, Callable[[], int]]:
    """A step that decodes one more token of each sequence after a prompt, and how many tokens the cache has.

    run: the model, or the compiled one. The prompt itself is not compiled.
    """
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=longest)
    given = {cache_name(model): cache, "use_cache": True, "logits_to_keep": 1}
    model(prompt, **given)
    token = prompt[:, -1:].clone()
    return lambda: run(token, **given), lambda: int(cache.get_seq_length())


def cache_name(model: torch.nn.Module) -> str:
    """The argument of the model's `forward` that is its cache: transformers 5.24 has renamed it, and warns of the old
    name, which torch.compile cannot trace."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def check_cache(before: int, after: int, steps: int = WARM + ROUNDS * REPLAYS) -> None:
    """Raises RuntimeError unless each of the steps has added one token to the cache."""
    if after - before != steps:
        raise RuntimeError(
            f"{steps} steps added {after - before} tokens to the cache: this version of transformers keeps its length"
            " on the host, which a CUDA graph does not see"
        )


def timed(step: Step, device: torch.device) -> float:
    """Milliseconds of a step, the median of rounds of replays.

    Raises RuntimeError if something is compiled after the second run, torch.OutOfMemoryError, and what the step raises.
    """
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM - 1):
            step()
        with no_compilation():
            step()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with no_compilation(), torch.cuda.graph(graph):
        step()
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


@contextlib.contextmanager
def no_compilation() -> Iterator[None]:
    """Inside, torch.compile raises RuntimeError instead of compiling again. Raises it afterwards if Triton compiled or
    loaded a kernel."""
    from triton import knobs

    loaded: list[str] = []
    before = knobs.runtime.jit_cache_hook

    def note(*args: Any, **options: Any) -> bool | None:
        loaded.append(getattr(options.get("fn"), "name", "a kernel"))
        return before(*args, **options) if before else None

    knobs.runtime.jit_cache_hook = note
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    finally:
        knobs.runtime.jit_cache_hook = before
    if loaded:
        raise RuntimeError(f"a step compiled {', '.join(sorted(set(loaded)))}, although it had run before")
