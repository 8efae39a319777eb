"""Sources of a trial's times: a GPU, or the model with checks in Triton's interpreter.

Both have the same interface, so that a sweep need not know which it has:

    source, regime, gpu, environment    how the rows describe themselves
    error_ratio(problem, config)        the check; at most 1 passes, None if the kernel cannot run here
    times(problem, config)              the time, and torch's if it is known
    alive()                             whether this process can run another trial

Groups have the sizes of `group_sizes.TYPICAL` where none are named.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import measure, space, verify
from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.group_sizes import TYPICAL, sizes_of
from tritonmm.autotune.measuring.measure import REGIMES, GraphReplay, Paired, Regime, Times
from tritonmm.autotune.measuring.nvml import Nvml
from tritonmm.config import Config
from tritonmm.dtypes import DTYPES, FP8
from tritonmm.gpu import Gpu
from tritonmm.model import constants
from tritonmm.plan import INTERPRETED, plan_for
from tritonmm.problem import Problem


class Source(Protocol):
    """The interface of a source, see above."""

    source: str
    regime: str
    gpu: Gpu
    environment: Environment

    def error_ratio(self, problem: Problem, config: Config) -> float | None: ...

    def times(self, problem: Problem, config: Config) -> Times: ...

    def alive(self) -> bool: ...


class ModelSource:
    """Times estimated by the kernel families for `gpu`. The check is real: Triton's interpreter runs a reduced problem.
    Kernels that do not run in it are not checked.

    Raises RuntimeError unless Triton's interpreter is on.
    """

    source = "model"
    regime = "none"

    def __init__(self, gpu: Gpu):
        if not INTERPRETED:
            raise RuntimeError(
                "modelled trials are checked in Triton's interpreter; set TRITON_INTERPRET=1 before importing tritonmm"
            )
        self.gpu = gpu
        self.environment = Environment.here(gpu.name)
        if (fitted := constants.of(gpu)) is not constants.shipped(gpu):
            self.environment = replace(self.environment, code=f"{self.environment.code}+{fitted.digest}")
        self._ratios: dict[tuple[Problem, Config], float] = {}

    def error_ratio(self, problem: Problem, config: Config) -> float | None:
        if not families.family(config.kernel).portable:
            return None
        small = verify.reduced(problem, config)
        # The interpreter ignores stages, so configs that differ only in these are run once.
        key = small, replace(config, num_stages=1)
        if key not in self._ratios:
            self._ratios[key] = verify.interpreted(small, config, replace(self.gpu, sms=2 * self.gpu.dies))
        return self._ratios[key]

    def times(self, problem: Problem, config: Config) -> Times:
        return Times(families.family(config.kernel).estimate(config, problem, self.gpu).us)

    def alive(self) -> bool:
        return True


class GpuSource:
    """Times measured on the current device, together with torch's.

    regime: the regime of `times`, a name in `measure.REGIMES`; `paired` measures in any regime.

    Graphs, operands and the check are kept as long as the problem and the sizes of its groups stay the same. Raises
    RuntimeError if kernels would run in Triton's interpreter.
    """

    source = "gpu"

    def __init__(self, regime: str = "burst"):
        if INTERPRETED:
            raise RuntimeError("TRITON_INTERPRET is set, so kernels run on the CPU; unset it to measure the GPU")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.regime = regime
        self.gpu = gpus.of_device(self.device.index)
        self.nvml = Nvml.of_device(self.device)
        self.environment = Environment.here(torch.cuda.get_device_name(self.device))
        self._asked: tuple[Problem, str] | None = None
        self._check: verify.Check | None = None
        self._sets: list[tuple[torch.Tensor, ...]] = []
        self._torch: GraphReplay | None = None
        self._refusal = ""
        self._ours: tuple[Config, GraphReplay] | None = None

    def error_ratio(self, problem: Problem, config: Config, sizes: str = TYPICAL) -> float:
        self._switch_to(problem, sizes)
        return self._check.error_ratio(plan_for(problem, config, self.device))

    def times(self, problem: Problem, config: Config) -> Times:
        return self.paired(problem, config, REGIMES[self.regime]).times

    def paired(self, problem: Problem, config: Config, regime: Regime, sizes: str = TYPICAL) -> Paired:
        """Times of `config` and of torch, round by round; of `config` alone if torch refuses the GEMM.

        sizes: of the problem's groups, as `group_sizes` spells a distribution.
        """
        self._switch_to(problem, sizes)
        if self._torch is None and not self._refusal:
            self._torch, self._refusal = torch_replay(problem, self._sets, self._check.keywords)
        found = measure.paired(self._graph_of(problem, config), self._torch, regime, clock=self.nvml.mhz)
        return replace(found, refusal=self._refusal)

    def alive(self) -> bool:
        """False after a kernel has faulted: CUDA then fails every later call of the process."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _graph_of(self, problem: Problem, config: Config) -> GraphReplay:
        if self._ours is None or self._ours[0] != config:
            self._free_ours()
            launch = bound_launch(problem, config, self.device, self._check.keywords)
            self._ours = config, GraphReplay(launch, self._sets)
        return self._ours[1]

    def _free_ours(self) -> None:
        if self._ours is not None:
            self._ours[1].free()
        self._ours = None

    def _switch_to(self, problem: Problem, sizes: str) -> None:
        if (problem, sizes) == self._asked:
            return
        self._free_ours()
        if self._torch is not None:
            self._torch.free()
        self._asked = self._check = self._torch = None
        self._refusal = ""
        self._sets = []
        found = sizes_of(problem, sizes)
        self._check = verify.Check(problem, self.device, sizes=found)
        self._sets = operand_sets(problem, self.device, self.gpu, found)
        self._asked = problem, sizes


def operand_sets(
    problem: Problem, device: torch.device, gpu: Gpu, sizes: Sequence[int] = ()
) -> list[tuple[torch.Tensor, ...]]:
    """Random operands and outputs to rotate through; together they exceed the L2. sizes: of the problem's groups."""
    sets = [space.operands(problem, device) for _ in range(measure.set_count(problem, gpu, sizes))]
    for a, b, _ in sets:
        # Normal numbers, because the power draw of a GEMM, and so its time, depends on the bits.
        space.fill(a)
        space.fill(b)
    return sets


def bound_launch(problem: Problem, config: Config, device: torch.device, keywords: Mapping[str, Any]) -> Callable:
    """The plan, to be called as launch(a, b, out). keywords: of `space.keywords`."""
    return functools.partial(plan_for(problem, config, device), **keywords)


def torch_replay(
    problem: Problem, sets: list[tuple[torch.Tensor, ...]], keywords: Mapping[str, Any]
) -> tuple[GraphReplay | None, str]:
    """torch's GEMMs of the sets, captured, and ""; or None and the reason if torch refuses the GEMM.

    cuBLAS refuses some sizes with block scales, for example, and torch operands of groups that are not aligned to 16
    bytes. Groups of other dtypes than bf16 it multiplies in a loop that waits for the offsets. No graph can have that,
    so it counts as refused. Raises torch.OutOfMemoryError.
    """
    try:
        with torch_precision(problem):
            operands = [(a, _weights(b, a.dtype), out) for a, b, out in sets]
            launch = torch_product(problem, **keywords)
            if problem.ragged:
                _check_that_it_never_waits(launch, *operands[0])
            return GraphReplay(launch, operands), ""
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return None, f"torch refused: {error}"


def _check_that_it_never_waits(launch: Callable, *operands: torch.Tensor) -> None:
    """Launches once. Raises RuntimeError if that waits for the device, before a capture is broken by it."""
    launch(*operands)  # the first launch may wait for its kernel to be loaded
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launch(*operands)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def torch_product(
    problem: Problem,
    scales: tuple[torch.Tensor | None, torch.Tensor] | None = None,
    offs: torch.Tensor | None = None,
) -> Callable:
    """torch's fastest way to compute the problem from a, b and out. For int8 and fp8 it is a private function.

    8-bit weights are converted to A's dtype before, so torch's time does not include their dequantization. torch makes
    a new output of groups, which end at `offs`, instead of `out`.
    """
    p = problem
    if p.ragged:
        out_dtype = DTYPES[p.out_dtype] if p.out_dtype != p.dtype else None
        return lambda a, b, out: torch.nn.functional.grouped_mm(a, b, offs=offs, out_dtype=out_dtype)
    if p.dtype == "int8":
        return lambda a, b, out: torch._int_mm(a, b, out=out)
    if p.dtype in FP8:
        scale_a, scale_b = scales
        options = {"out_dtype": DTYPES[p.out_dtype], "use_fast_accum": p.precision == "fast"}
        if p.cols_per_scale == 128:  # torch requires scales contiguous along K
            scale_b = scale_b.t().contiguous().t()
        return lambda a, b, out: torch._scaled_mm(a, b, scale_a, scale_b, out=out, **options)
    multiply = torch.mm if p.batch == 1 else torch.bmm
    if p.out_dtype != p.dtype:
        return lambda a, b, out: multiply(a, b, DTYPES[p.out_dtype], out=out)
    return lambda a, b, out: multiply(a, b, out=out)


def _weights(b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """B as torch multiplies it: 8-bit weights converted to a 2-byte A's dtype."""
    return b if b.itemsize == dtype.itemsize else b.to(dtype)


@contextlib.contextmanager
def torch_precision(problem: Problem):
    """Inside, torch multiplies fp32 with the problem's precision. For other dtypes no setting is touched."""
    matmul = torch.backends.cuda.matmul
    if problem.dtype != "fp32":
        yield
        return
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if problem.precision == "tf32" else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
