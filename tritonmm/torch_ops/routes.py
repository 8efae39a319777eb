"""Which calls of torch's operators tritonmm computes: routes, kept for each policy; torch computes those that fail."""

import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from tritonmm import forks
from tritonmm.dtypes import FP8, HALF, default_output
from tritonmm.gpu import Gpu
from tritonmm.moduli import SAFE
from tritonmm.problem import Problem
from tritonmm.torch_ops.product import remember


class LeftToTorchError(RuntimeError):
    """A GEMM that tritonmm leaves to torch, where `enable(..., strict=True)` forbids that."""


Refusal = Callable[[Problem, Gpu], str]
"""Why a policy leaves a problem to torch; "" if tritonmm computes it."""

MESSAGE_LENGTH = 500
"""Characters of an exception's message that a warning repeats: a compiler's log may have thousands."""


def kept_by_torch(problem: Problem) -> str:
    """Why torch computes a problem under every policy: no overridden operator does, or torch refuses it. "" if none."""
    p = problem
    if 0 in (p.batch, p.m, p.n, p.k):
        return "empty GEMMs stay with torch"
    if p.ragged:
        return _groups_kept(p)
    if p.dtype in HALF and p.b_dtype not in HALF:
        return f"no overridden operator multiplies {p.dtype} by {p.b_dtype}; tritonmm.weight_only_linear does"
    if p.dtype in FP8:
        if not p.scales:
            return "torch has no operator for fp8 without scales"
        if p.dtype == p.b_dtype == "fp8e5m2":
            return "torch's scaled_mm refuses e5m2 by e5m2; tritonmm.scaled_mm multiplies them"
        if p.layout != "nt" or p.n % 16 or p.k % 16:
            return "torch's scaled_mm takes layout nt and multiples of 16 for N and K; tritonmm.scaled_mm takes any"
    elif p.dtype == "int8":
        if p.scales or p.out_dtype != default_output(p.dtype):
            return "torch has no operator for int8 but _int_mm, to int32 without scales; tritonmm.scaled_mm has scales"
        if p.batch > 1 or p.m <= 16 or p.n % 8 or p.k % 8:
            return (
                "torch's _int_mm takes no batch, M above 16, and N and K in multiples of 8; tritonmm.int_mm any sizes"
            )
    elif p.precision == SAFE:
        return (
            f'torch has no {SAFE}; tritonmm.matmul(..., precision="{SAFE}") has, and so has enable({p.dtype}="{SAFE}")'
        )
    elif p.precision.endswith("x3") or p.ozaki:
        return f'torch has no {p.precision}; tritonmm.matmul(..., precision="{p.precision}") has'
    elif p.out_dtype != p.dtype:
        return f"torch.mm(out_dtype=) is not overridden; tritonmm.mm(..., out_dtype=) has {p.dtype} to {p.out_dtype}"
    return ""


TORCHS_GROUPS = 1023
"""The most groups that torch takes where it has a kernel for all of them."""


def _groups_kept(problem: Problem) -> str:
    """`kept_by_torch` of grouped products, in layouts as those of groups of rows or of K."""
    p = problem
    ours = "tritonmm.scaled_grouped_mm" if p.element_bytes == 1 or p.b_element_bytes == 1 else "tritonmm.grouped_mm"
    if p.epilogue.bias:
        return f"torch's grouped products have no bias; those of {ours} have"
    if p.groups > TORCHS_GROUPS:
        return f"torch's grouped products have at most {TORCHS_GROUPS} groups; {ours} takes more"
    if p.element_bytes > 1:
        if p.b_dtype != p.dtype or p.dtype == "fp64":
            return f"torch's _grouped_mm takes bf16, fp16 and fp32, not {p.dtype} by {p.b_dtype}"
        if p.out_dtype != p.dtype:
            return f"torch's _grouped_mm has no {p.out_dtype} results of {p.dtype}; {ours}(..., out_dtype=) has"
        if p.precision.endswith("x3"):
            return f'torch has no {p.precision}; {ours}(..., precision="{p.precision}") has'
        if p.alignment < 16 or "s" in p.layout:
            return f"torch's _grouped_mm takes addresses and strides in multiples of 16 bytes; {ours} takes any"
        return ""
    if not p.dtype == p.b_dtype == "fp8e4m3" or p.scales != "row" or p.out_dtype != "bf16":
        return f"torch's _scaled_grouped_mm takes e4m3 with scales of rows, to bf16; {ours} takes more"
    if p.layout != "nt" or p.alignment < 16 or p.n % 16 or p.k % 16:
        return f"torch's _scaled_grouped_mm takes layout nt and multiples of 16 for N and K; {ours} takes any"
    return ""


class Demand(NamedTuple):
    """What `enable` or `use` asks for.

    policy: which GEMMs tritonmm computes; moot if accumulation is "invariant": all that it can.
    accumulation: as `Problem.accumulation`. strict: whether a GEMM that is left to torch is an error, not a warning.
    fp64, fp32: a precision of `Problem` for operands of that dtype, where it should be faster; "" for none.
    """

    policy: str = "faster"
    accumulation: str = "any"
    strict: bool = False
    fp64: str = ""
    fp32: str = ""

    def precision(self, dtype: torch.dtype) -> str:
        """The precision that is asked for operands of a dtype; "" for what the policy decides alone."""
        return {torch.float64: self.fp64, torch.float32: self.fp32}.get(dtype, "")


class Routes(dict):
    """The routes of one operator's calls under one demand; the reason, a text, for calls that torch computes.

    A key holds all that a route depends on.
    """

    __slots__ = ("demand", "operator", "refusal")

    def __init__(self, operator: str, demand: Demand, refusal: Refusal):
        super().__init__()
        self.operator = operator
        self.demand = demand
        self.refusal = refusal

    def report(self, reason: str) -> None:
        """Says that torch computes a call although invariant accumulation is required, once for each reason.

        Raises RuntimeError instead if the demand is strict. Does nothing if any accumulation will do.
        """
        if self.demand.accumulation == "any" or not reason:
            return
        said = f"aten::{self.operator} stays with torch's kernel, whose accumulation is not invariant: {reason}"
        if self.demand.strict:
            raise LeftToTorchError(said)
        if _is_first((self.operator, reason)):
            warnings.warn(f"{said}. Later calls with this reason are not reported.", stacklevel=_level_of_caller())

    def give_up(self, about: tuple, a: torch.Tensor, b: torch.Tensor, error: Exception) -> None:
        """Leaves calls like this one, of a and b, to torch from here on, and warns of the first error of its cause.

        Errors of one class that are raised at one place have one cause. If memory was short, only this call is
        torch's: the next one may find enough.
        """
        if isinstance(error, LeftToTorchError):
            raise error
        reason = f"tritonmm failed: {type(error).__name__}: {str(error)[:MESSAGE_LENGTH]}"
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in str(error):
            self.report(reason)
            return
        remember(self, about, reason)
        if self.demand.strict:
            self.report(reason)
        if _is_first(_cause(error)):
            _is_first((self.operator, reason))  # `report` need not say it again
            message = str(error)
            shown = message if len(message) <= MESSAGE_LENGTH else message[:MESSAGE_LENGTH] + " ..."
            warnings.warn(
                f"tritonmm failed to compute aten::{self.operator} of {a.dtype} {list(a.shape)} and {b.dtype}"
                f" {list(b.shape)}: {type(error).__name__}: {shown}\ntorch's own kernel computes this call and later"
                " ones like it; further failures of this cause are not reported. `tritonmm doctor` checks the"
                " installation, and tritonmm's own functions raise the whole error. Once the cause is removed,"
                " tritonmm.enable() tries again.",
                stacklevel=_level_of_caller(),
            )


class Switch:
    """Turns the kernel of one operator on and off.

    routes: those of the policy that is on, None while torch computes every call. A kernel reads it once a call, so that
    no call uses the routes of two policies. A policy's routes are kept while another one is on.
    """

    __slots__ = ("_known", "operator", "routes")

    def __init__(self, operator: str):
        self.operator = operator
        self.routes: Routes | None = None
        self._known: dict[Demand, Routes] = {}

    def turn_on(self, demand: Demand, refusal: Refusal) -> None:
        if demand not in self._known:
            self._known[demand] = Routes(self.operator, demand, refusal)
        self.routes = self._known[demand]

    def turn_off(self) -> None:
        self.routes = None

    def forget(self) -> None:
        """Has all policies find their routes anew when they are turned on the next time."""
        self._known.clear()


def _level_of_caller() -> int:
    """`warnings.warn`'s stacklevel, where this is called, for the frame that called this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tritonmm."):
        level, frame = level + 1, frame.f_back
    return level


def _cause(error: Exception) -> tuple:
    """The class of an error and the place where it was raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return type(error), traceback and (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)


def _is_first(cause: tuple) -> bool:
    """Whether this cause of a warning is new."""
    with _LOCK:
        is_first = cause not in _CAUSES
        _CAUSES.add(cause)
    return is_first


_CAUSES: set[tuple] = set()
_LOCK = forks.lock()
