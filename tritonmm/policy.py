"""The policy "faster": which products `enable` gives to tritonmm, and which it leaves to torch's kernels."""

import math
from typing import NamedTuple

from tritonmm.gpu import Gpu
from tritonmm.model.torch_time import has_grouped_kernel, torch_us
from tritonmm.problem import Problem
from tritonmm.selection import best_in_class
from tritonmm.tuned import errors
from tritonmm.tuned.errors import Errors, Expected

CAUTION = 0.8
"""How many standard deviations faster than torch's kernel ours must be expected to be. With it, 1.2% of the products of
the fit lose more than 5% where nothing is known of them, and 1.8% of the held-out ones; with 0.6 it is 1.5% and 2.6%,
and all are 0.2% faster in the mean (`python -m tritonmm.autotune.studies.fit_torch`)."""

FP64 = "fp64 stays torch's, whose kernels are at least as fast"
"""Why policies leave fp64 to torch."""

TOGETHER = Expected(0.0, 0.01)
"""What two times of one run err, each."""


class Times(NamedTuple):
    """What to expect of a product, in microseconds.

    is_measured, torch_is_measured: whether the tuned tables have it; spread: standard deviation of the logarithm of
    torch_us over ours_us.
    """

    ours_us: float
    torch_us: float
    is_measured: bool
    torch_is_measured: bool
    spread: float

    @property
    def faster(self) -> bool:
        """Whether the policy "faster" has tritonmm multiply."""
        return math.log(self.torch_us / self.ours_us) >= CAUTION * self.spread


def times(problem: Problem, gpu: Gpu, known: Errors) -> Times:
    """Times of a tuned table where it has both of one run, else its time or estimates, less what those err by what is
    `known`."""
    ours = best_in_class(problem, gpu)
    ours_error = torch_error = TOGETHER
    if not ours.torch_us:
        ours_error = known.expected(errors.our_kind(problem, ours.config, ours.is_measured), problem)
        torch_error = known.expected(errors.torch_kind(problem), problem)
    return Times(
        ours.us * math.exp(-ours_error.error),
        (ours.torch_us or torch_us(problem, gpu)) * math.exp(-torch_error.error),
        ours.is_measured,
        bool(ours.torch_us),
        math.hypot(ours_error.spread, torch_error.spread),
    )


def prefers(problem: Problem, gpu: Gpu) -> tuple[bool, str]:
    """Whether policy "faster" gives a problem to tritonmm, and why."""
    if problem.dtype == "fp64":
        return False, FP64
    is_loop = problem.ragged and not has_grouped_kernel(problem, gpu)
    if is_loop and problem.element_bytes == 1:
        return False, f"torch multiplies no groups of {problem.dtype} on {gpu.arch}; tritonmm.scaled_grouped_mm does"
    found = times(problem, gpu, errors.of(gpu))
    torchs = f"{found.torch_us:.1f} us"
    if found.torch_is_measured:
        said = f"ours was measured to take {found.ours_us:.1f} us and torch's {torchs}"
    elif found.is_measured:
        said = (
            f"ours was measured to take {best_in_class(problem, gpu).us:.1f} us, torch's is predicted to take {torchs}"
        )
    else:
        said = f"ours is predicted to take {found.ours_us:.1f} us and torch's {torchs}"
    if not found.faster and found.ours_us < found.torch_us:
        said += f"; that is too close to call, the ratio being off by {found.spread:.0%} or so"
    if is_loop:
        said += "; torch multiplies one such group after the other"
    return found.faster, said
