"""tune="first-call": measures the most promising configs for operands of a new kind, on the operands themselves."""

import math
import statistics
import warnings

import torch

from tritonmm import families, forks, tuned
from tritonmm.selection import best, timed
from tritonmm.torch_ops import call_cache
from tritonmm.torch_ops import product as products
from tritonmm.torch_ops.operator import is_plain
from tritonmm.torch_ops.product import How, gpu_of

MEASURED = 8
"""Configs that are measured: those with the shortest estimates."""

ROUNDS = 5
ROUND_US = 1000.0
MOST_LAUNCHES = 50
"""In each of `ROUNDS` each config is launched for `ROUND_US`, at most `MOST_LAUNCHES` times. The median counts."""


def tune(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, how: How | None = None) -> None:
    """Finds the fastest config for a @ b into a new output, or into one such as `out`, and uses it from then on.

    a, b, out, how: as `product.product` takes them. a and b are only read, and out is neither read nor written.
    The fastest config is remembered, and published in the user's table; a warning says so if that cannot be written.
    What a table already has is not measured again.

    It takes seconds, mostly to compile. It synchronises with the current stream, and other threads that tune wait.
    Nothing is measured while the stream is captured, under torch.compile, transforms, modes or autocast, without a GPU,
    or without memory for another output.
    """
    if not _is_measurable(a, b):
        return
    if out is None and how is not None:
        out = products.new_output(a, b, how.out_dtype)  # as `product` does: remembered calls depend on its dtype
    about = products.about(a, b, out, how=how)
    if about in _TUNED:
        return
    with _LOCK:
        if about not in _TUNED:
            _tune(a, b, out, how)
            while len(_TUNED) >= products.CACHED_CALLS:
                del _TUNED[next(iter(_TUNED))]
            _TUNED[about] = None


def _tune(a, b, out, how) -> None:
    from tritonmm.launch import capture
    from tritonmm.plan import INTERPRETED, plan_for

    try:
        # A capture of another thread forbids, to all that are not relaxed, what allocates or compiles.
        with capture.relaxed():
            shape = (*a.shape[:-1], b.shape[-1])
            scratch = (
                a.new_empty(shape)
                if out is None
                else torch.empty_strided(shape, out.stride(), dtype=out.dtype, device=out.device)
            )
            problem = products.problem_for(a, b, scratch if out is None else out, products.BARE, how)
            gpu = gpu_of(a.device)
            kernel = families.portable() if INTERPRETED else ""
            known = best(problem, gpu, kernel)
            if known.is_measured:
                _adopt(a, b, out, known.config, how)
                return
            configs = list(timed(problem, gpu, kernel))[:MEASURED]
            times = _times([plan_for(problem, config, a.device) for config in configs], a, b, scratch)
    except torch.OutOfMemoryError:
        return
    us, config = min(zip(times, configs, strict=True), key=lambda pair: pair[0])
    if us == math.inf:  # then the call itself says what is wrong
        return
    _adopt(a, b, out, config, how)
    try:
        tuned.publish([(problem, config, us)], gpu)
    except (OSError, tuned.TableError) as error:
        warnings.warn(f"tritonmm: what was tuned is not kept for other processes: {error}", stacklevel=5)


def _adopt(a, b, out, config, how) -> None:
    products.adopt(a, b, out, config, how)
    call_cache.forget()


def _is_measurable(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (is_plain(a, b) and a.is_cuda and a.numel() and b.numel()):
        return False
    with torch.cuda.device(a.device):
        return not torch.cuda.is_current_stream_capturing()


def _times(plans: list, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> list[float]:
    """Microseconds of each plan on the current stream, infinite for one that fails."""
    with torch.cuda.device(a.device):
        first = []
        for plan in plans:
            try:
                plan(a, b, out)  # compiles
                first.append(_took(plan, a, b, out, 2))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever a compiler or a launch raises, another config is chosen
                first.append(math.inf)
        launches = [0 if us == math.inf else max(1, min(MOST_LAUNCHES, int(ROUND_US / us))) for us in first]
        rounds = [
            [_took(plan, a, b, out, count) if count else math.inf for plan, count in zip(plans, launches, strict=True)]
            for _ in range(ROUNDS)  # in turn, so that all meet the same clocks
        ]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _took(plan, a, b, out, launches: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The GPU spins while the host enqueues, 25 us and 10 us a launch, so that the events enclose no wait for it.
    torch.cuda._sleep(50_000 + 20_000 * launches)
    start.record()
    for _ in range(launches):
        plan(a, b, out)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / launches


_TUNED: dict[tuple, None] = {}
_LOCK = forks.lock()
