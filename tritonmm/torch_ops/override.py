"""enable, disable, use: torch's own matmuls go through tritonmm where that is faster.

The CUDA kernels of the aten ops that matmul, linear, einsum, attention and their derivatives end in are replaced. That
is below autograd, autocast, torch.func, DTensor and functionalization, which therefore work as before. torch.compile's
graphs call the same ops. torch's own kernels are kept, and compute everything that tritonmm does not support (complex
and integer dtypes, operands that do not fit each other, subclasses, empty GEMMs), and fp64, where they are at least as
fast, unless invariant accumulation is required, or exact int8 products are asked for and should be faster. Results and
errors are torch's there, and also where a kernel of tritonmm cannot be compiled or launched.

The kernels are registered once, by the first `enable` or `use`. After `disable` they stay registered and call torch's.
Unregistering is not safe while other threads multiply: torch frees a kernel although a thread may have looked it up and
be waiting for Python's lock to call it, and nothing shows that thread (segmentation faults after 300 to 6,000 times).
Registering is safe except for calls that torch makes in boxed form, by torch.ops or under a mode, which read a table
entry in two parts: one failed in some 60,000 registrations under load, none of 23,000 through torch's functions.

_int_mm and _scaled_mm are replaced too, and _scaled_mm_v2, which torch.nn.functional.scaled_mm calls, for tensor-wise,
row-wise and block-wise scales of 128; and _grouped_mm, _scaled_grouped_mm and _scaled_grouped_mm_v2, which
torch.nn.functional.grouped_mm and scaled_grouped_mm call. Not replaced: _addmm_activation, whose epilogue tritonmm's
kernels do not have; the overloads mm.dtype, bmm.dtype and so on. `aten_others` has them where invariant accumulation
is required.
"""

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable

import torch

from tritonmm import forks
from tritonmm.gpu import Gpu
from tritonmm.moduli import SAFE
from tritonmm.policy import FP64, prefers
from tritonmm.problem import ACCUMULATIONS, Problem
from tritonmm.torch_ops import aten_grouped, aten_others, aten_quantized
from tritonmm.torch_ops.aten import ATEN_OPS, kernels
from tritonmm.torch_ops.mode import require
from tritonmm.torch_ops.routes import Demand, Refusal, Switch, kept_by_torch


def _slower(problem: Problem, gpu: Gpu) -> str:
    """Why the policy "faster" leaves a problem to torch."""
    wanted, why = prefers(problem, gpu)
    return "" if wanted else why


POLICIES: dict[str, Refusal] = {
    "faster": lambda problem, gpu: kept_by_torch(problem) or _slower(problem, gpu),
    "always": lambda problem, gpu: kept_by_torch(problem) or (FP64 if problem.dtype == "fp64" else ""),
}


def _refusal(demand: Demand) -> Refusal:
    """Why torch computes a problem under a demand: policies do not matter where invariant accumulation is required."""
    if demand.accumulation == "invariant":
        return lambda problem, gpu: kept_by_torch(problem)
    return POLICIES[demand.policy]


class Override:
    """The override of the kernels of one dispatch key: "CUDA", in tests also "CPU". A process has one for each key."""

    def __init__(self, dispatch_key: str = "CUDA"):
        self.dispatch_key = dispatch_key
        self._lock = forks.rlock()
        self._enabled: Demand | None = None
        self._scopes: list[list[Demand]] = []
        self._switches: list[Switch] = []
        self._registered: set[str] = set()  # the accumulations that kernels are registered for

    def enable(
        self, policy: str = "faster", accumulation: str = "any", strict: bool = False, fp64: str = "", fp32: str = ""
    ) -> None:
        demand = _demand(policy, accumulation, strict, fp64, fp32)
        with self._lock:
            self._enabled = demand
            for switch in self._switches:
                switch.forget()
            self._turn()

    def disable(self) -> None:
        with self._lock:
            self._enabled = None
            self._turn()

    def use(
        self, policy: str = "faster", accumulation: str = "any", strict: bool = False, fp64: str = "", fp32: str = ""
    ) -> "Use":
        return Use(self, _demand(policy, accumulation, strict, fp64, fp32))

    def enter(self, scope: list[Demand]) -> None:
        with self._lock:
            self._scopes.append(scope)
            self._turn()

    def leave(self, scope: list[Demand]) -> None:
        with self._lock:
            self._scopes = [other for other in self._scopes if other is not scope]
            self._turn()

    def _turn(self) -> None:
        """Applies the demand of the scope that was entered last, or of `enable` if there is none."""
        demand = self._scopes[-1][0] if self._scopes else self._enabled
        if demand and "any" not in self._registered:
            dense = (kernels(op, self.dispatch_key) for op in ATEN_OPS)
            others = (each.kernels(self.dispatch_key) for each in (aten_quantized, aten_grouped))
            self._register("any", *dense, *others)
        if demand and demand.accumulation not in self._registered:
            self._register(demand.accumulation, aten_others.kernels(self.dispatch_key))
        require(demand.accumulation if demand else "any")
        for switch in self._switches:
            if demand:
                switch.turn_on(demand, _refusal(demand))
            else:
                switch.turn_off()

    def _register(self, accumulation: str, *kernels: Iterable[tuple[Switch, Callable]]) -> None:
        """Registers the kernels that a demand of this accumulation needs, and adds their switches, which are off."""
        library = torch.library.Library("aten", "IMPL")
        _REGISTERED.append(library)
        explicit = "allow_override" in inspect.signature(library.impl).parameters
        options = {"allow_override": True} if explicit else {}
        found = list(itertools.chain(*kernels))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for switch, kernel in found:
                library.impl(switch.operator, kernel, self.dispatch_key, **options)
        self._switches += [switch for switch, _ in found]
        self._registered.add(accumulation)


class Use(contextlib.ContextDecorator, contextlib.AbstractContextManager[None]):
    """What `use` returns: a context that may be entered any number of times, and decorates functions."""

    def __init__(self, override: Override, demand: Demand):
        self._override = override
        self._demand = demand
        self._entered: list[list[Demand]] = []

    def __enter__(self) -> None:
        scope = [self._demand]
        self._entered.append(scope)
        self._override.enter(scope)

    def __exit__(self, *error: object) -> None:
        self._override.leave(self._entered.pop())


_REGISTERED: list[torch.library.Library] = []
"""Kept for ever: deleting a library unregisters its kernels."""


def _demand(policy: str, accumulation: str, strict: bool, fp64: str, fp32: str) -> Demand:
    """The arguments of `enable` and `use`. Raises ValueError for those that are unknown."""
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
    if accumulation not in ACCUMULATIONS:
        raise ValueError(f"accumulation is {accumulation!r}; it must be one of {', '.join(ACCUMULATIONS)}")
    if strict and accumulation == "any":
        raise ValueError('strict is True; that is for accumulation="invariant", of which it allows no exception')
    for name, precision in (("fp64", fp64), ("fp32", fp32)):
        if precision not in ("", SAFE):
            raise ValueError(f"{name} is {precision!r}; it must be {SAFE!r}, or '' for native products")
        if precision and accumulation == "invariant":
            raise ValueError(f"{name} is {precision!r}, whose bits depend on all of the operands; leave out invariant")
    return Demand(policy, accumulation, bool(strict), fp64, fp32)


_CUDA = Override()


def enable(
    policy: str = "faster", *, accumulation: str = "any", strict: bool = False, fp64: str = "", fp32: str = ""
) -> None:
    """Makes tritonmm compute torch's own matmuls on GPUs, from here on, in all threads and on all devices.

    policy: "faster" gives to tritonmm what it is predicted to compute faster than torch; "always" gives it everything
        that it supports. `explain` says which kernel computes a matmul, and why.
    accumulation: "any", or "invariant" for results of which each row has the same bits in every batch. Then tritonmm
        computes every matmul that it can, whatever the policy, also in its own functions. A warning names each operator
        and reason for which torch computes one all the same. docs/accumulation.md says what is covered.
    strict: with "invariant", raises RuntimeError instead of that warning.
    fp64, fp32: "ozaki:safe" computes products of that dtype by exact int8 products where that is predicted to be
        faster, whatever the policy. If the GPU finds that nothing proves them to be as accurate, it multiplies
        natively, which then takes longer than without (docs/ozaki.md). fp32 stays as it is where torch is set to tf32.
        Not with "invariant".

    Calling it again changes all of this, chooses configs again, with what was tuned since, and retries what failed. One
    `disable` ends it. A matmul that another thread is computing meanwhile may go either way. Raises ValueError for an
    unknown policy, accumulation or precision.

    If tritonmm cannot compile or launch a kernel, torch's kernel computes the call and later calls like it, and a
    warning gives the reason, once for each cause. If memory is short, torch computes that call only.

    The first call in a process registers kernels in a table that torch does not lock for readers: calls that other
    threads make at that moment through torch.ops, or under a mode such as FlopCounterMode, may fail. Make it before
    such threads start. Calls of torch's functions are not affected. Later calls of `enable`, `disable` and `use` only
    set Python attributes, and are safe at any time.

    >>> tritonmm.enable()  # doctest: +SKIP
    >>> torch.nn.Linear(4096, 4096, device="cuda")(x)  # doctest: +SKIP
    >>> tritonmm.disable()  # doctest: +SKIP
    """
    _CUDA.enable(policy, accumulation, strict, fp64, fp32)


def disable() -> None:
    """Gives torch's matmuls back to its own kernels. `use` blocks that are still open keep their policy.

    Until the process ends, each of torch's matmuls takes up to 5 us more host time than before the first `enable`, and
    holds Python's lock for that time: docs/drop-in.md says how that was measured, and why it is so.

    >>> tritonmm.disable()
    """
    _CUDA.disable()


def use(
    policy: str = "faster", *, accumulation: str = "any", strict: bool = False, fp64: str = "", fp32: str = ""
) -> contextlib.AbstractContextManager[None]:
    """`enable` for a `with` block, then as before. It applies to the whole process, as `enable` does.

    policy, accumulation, strict, fp64, fp32: as in `enable`.

    Blocks may be nested, and may overlap in several threads: the one that was entered last decides. A block keeps the
    configs that earlier blocks with its arguments chose, and leaves to torch what failed in them. Raises ValueError
    as `enable` does.

    >>> with tritonmm.use("always"):  # doctest: +SKIP
    ...     loss = model(x).sum()
    """
    return _CUDA.use(policy, accumulation, strict, fp64, fp32)
