"""How tritonmm computes a GEMM, and why: config, predicted traffic and time, and the policy's decision."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from tritonmm import families
from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.gpu import default as default_gpu
from tritonmm.model import constants, l2
from tritonmm.model.chunks import chunk_k, chunks
from tritonmm.model.groups import Sized, as_equal, sized, sizes_of, without_sizes
from tritonmm.model.l2 import Traffic
from tritonmm.model.time import Time
from tritonmm.model.torch_time import torch_us
from tritonmm.moduli import SAFE
from tritonmm.policy import prefers
from tritonmm.problem import Problem
from tritonmm.selection import Choice, best_in_class, estimated
from tritonmm.torch_ops import grouped_product, ozaki_time
from tritonmm.torch_ops.checks import check_operands, shape_of
from tritonmm.torch_ops.dense import how_of
from tritonmm.torch_ops.grouped_checks import check_groups
from tritonmm.torch_ops.grouped_product import GroupedHow
from tritonmm.torch_ops.mode import check_accumulation
from tritonmm.torch_ops.operands import matrices
from tritonmm.torch_ops.ozaki_time import OzakiTime
from tritonmm.torch_ops.product import BARE, How, gpu_of, problem_for
from tritonmm.torch_ops.routes import kept_by_torch

COLUMNS = 120
"""Columns of the printed text."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a GEMM is computed. `print` shows all of it.

    problem, gpu, config: the GEMM, the GPU, and the config that `select` chooses. A grouped problem may be a
        `model.groups.Sized` one: time and traffic are then those of its sizes. The config is chosen without them.
    why: where the config comes from, and how its tiles fill the GPU.
    others: for each other kernel family, the estimated time of its best config, or why it has none; with precision
        "ozaki", the time without. Config and traffic are then those of the int8 products.
    traffic: predicted DRAM and L2 traffic.
    accumulation: in which order the products of an element are summed, and what invariant accumulation costs.
    time: its estimate, and what that is made of.
    constants: which fitted constants the models read.
    us: time in microseconds, measured if `is_measured`, else estimated.
    overrides: whether `enable()` has tritonmm compute it. reason: why.

    >>> found = tritonmm.explain(torch.empty(1000, 512, device="cuda"), torch.empty(512, 768, device="cuda"))
    >>> found.problem.m, found.config.kernel in ("tile", "skinny", "exact"), found.us > 0
    (1000, True, True)
    """

    problem: Problem
    gpu: Gpu
    config: Config
    why: str
    others: dict[str, str] = field(hash=False)
    traffic: Traffic
    accumulation: str
    time: Time | OzakiTime
    constants: str
    us: float
    is_measured: bool
    overrides: bool
    reason: str

    @classmethod
    def of(cls, problem: Problem, gpu: Gpu | None = None) -> "Explanation":
        """Explains a problem, on this machine's GPU by default, or on an H200 if there is none.

        Raises ValueError if no config is legal.

        >>> problem = tritonmm.Problem.dense(2049, 8192, 3584, layout="nt")
        >>> tritonmm.Explanation.of(problem, tritonmm.gpu.spec("h200")).kernel
        'hopper'
        """
        gpu = gpu or default_gpu()
        if problem.ozaki:
            return _by_residues(problem, gpu, cls.of(replace(problem, precision="ieee"), gpu))
        choice = best_in_class(problem, gpu)
        kept = kept_by_torch(problem)
        return cls(
            problem,
            gpu,
            choice.config,
            _why(problem, gpu, choice),
            {kernel: _other(problem, gpu, kernel) for kernel in families.names() if kernel != choice.config.kernel},
            l2.of(problem, choice.config, gpu),
            _accumulation(problem, gpu, choice),
            families.family(choice.config.kernel).estimate(choice.config, problem, gpu),
            constants.of(gpu).source,
            choice.us,
            choice.is_measured,
            *_overrides(problem, gpu, kept),
        )

    @property
    def kernel(self) -> str:
        return self.config.kernel

    @property
    def warning(self) -> str:
        """A warning if operands and output exceed the GPU's memory; "" if they fit."""
        size, memory = self.problem.compulsory_bytes, self.gpu.memory_bytes
        if not 0 < memory < size:
            return ""
        return f"operands and output take {size / 1e9:,.0f} GB, more than the {memory / 1e9:.0f} GB of {self.gpu.name}"

    def __str__(self) -> str:
        verdict = "tritonmm" if self.overrides else "torch"
        source = "measured" if self.is_measured else "predicted"
        if not (self.is_measured or self.gpu.verified):
            source += " (unverified on this GPU)"
        lines = [
            ("GEMM", f"{self.problem} on {self.gpu.name}"),
            ("groups", _sizes(self.problem) if self.problem.ragged else ""),
            ("warning", self.warning),
            ("config", str(self.config)),
            ("why", self.why),
            *(("others" if i == 0 else "", f"{name:<11} {said}") for i, (name, said) in enumerate(self.others.items())),
            ("sums", self.accumulation),
            ("traffic", str(self.traffic)),
            ("time", f"{self.us:.1f} us, {source}"),
            ("parts", f"{self.time}" if self.is_measured else str(self.time).partition(", ")[2]),
            ("constants", self.constants),
            ("enable()", f"{verdict}: {self.reason}"),
        ]
        return "\n".join(_wrapped(name, text) for name, text in lines if text)


def explain(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    groups: Sequence[int] | None = None,
    accumulation: str = "",
    precision: str = "",
) -> Explanation:
    """Says how `tritonmm.matmul(a, b)` is computed, and whether `enable()` replaces torch's kernel. Runs nothing.

    a, b: as in `matmul`; only their shapes, strides, dtype and device matter. CPU tensors are explained for an H200.
    groups: the sizes of groups, to explain `tritonmm.grouped_mm(a, b)` and torch's. Time and traffic are those of these
        sizes; a call, which does not know them, chooses its config without them.
    accumulation, precision: as in `matmul`. precision is not for groups.
    Raises what `matmul` or `grouped_mm` raises for operands that cannot be multiplied, and ValueError for sizes that
    they cannot have.

    >>> print(tritonmm.explain(torch.empty(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")))
         GEMM  64x64x64 nn fp32 on ...
       config  ...
    >>> tokens, experts = torch.empty(64, 32, device="cuda"), torch.empty(3, 32, 16, device="cuda")
    >>> tritonmm.explain(tokens, experts, groups=[40, 0, 24]).problem.sizes
    (40, 0, 24)
    """
    check_accumulation(accumulation)
    check_operands("explain", a, b)
    if groups is not None:
        if precision:
            raise ValueError(f"explain: precision is {precision!r} and groups is given; leave one out")
        return Explanation.of(_in_groups(a, b, groups, accumulation), gpu_of(a.device))
    a, b, _ = matrices(a, b)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    how = how_of(a, precision, accumulation) or How()
    return Explanation.of(problem_for(a, b, out, BARE, how), gpu_of(a.device))


def _by_residues(problem: Problem, gpu: Gpu, native: Explanation) -> Explanation:
    """The explanation of a product with precision "ozaki". native: that of the product in the dtype itself."""
    found = ozaki_time.estimate(problem, gpu)
    overrides, reason = _overrides(problem, gpu, kept_by_torch(problem))
    if problem.precision == SAFE and not ozaki_time.gains(problem, native.us, gpu):
        why = f"{found.time.us:.1f} us by exact int8 products is not enough less; {native.why}"
        return replace(native, problem=problem, why=why, overrides=overrides, reason=reason)
    parts = "" if found.panels == 1 else f", in {found.panels} parts of the output"
    why = f"{problem.ozaki} exact int8 products{parts}: {found.products}, {found.choice.origin}"
    faster = "ozaki" if found.time.us < native.us else "ieee"
    said = f"{native.us:.1f} us by the {native.kernel} kernel: {faster} should be faster"
    if problem.precision == SAFE:
        said += f"; if the GPU finds nothing proved, the product takes {native.us + found.refused_us:.1f} us"
    others = {"ieee": said}
    return Explanation(
        problem,
        gpu,
        found.choice.config,
        why,
        others,
        l2.of(found.products, found.choice.config, gpu),
        f"{problem.accumulation}; exact in any order"
        + ("" if problem.precision == SAFE else ", so with the bits of invariant accumulation"),
        found.time,
        constants.of(gpu).source,
        found.time.us,
        False,
        overrides,
        reason,
    )


def _in_groups(a: torch.Tensor, b: torch.Tensor, groups: Sequence[int], accumulation: str) -> Sized:
    """The grouped problem of these operands and sizes."""
    if a.dim() == b.dim() == 3:
        raise RuntimeError(
            f"explain: groups is given for {shape_of(a)} by {shape_of(b)}; two 3-D operands are a batch, so leave it"
            " out"
        )
    for operand, x in (("a", a), ("b", b)):
        if x.dim() == 3 and x.shape[0] != len(groups):
            raise RuntimeError(
                f"explain: groups has {len(groups)} sizes, {operand} is {shape_of(x)}; there must be one for each of"
                f" its {x.shape[0]} groups"
            )
    offs = torch.empty(len(groups), dtype=torch.int32, device=a.device)
    check_groups("explain", a, b, offs)
    out = a.new_empty(grouped_product.result_shape(a, b, offs))
    problem = grouped_product.problem_of(a, b, out, GroupedHow(accumulation=accumulation))
    return sized(problem, [int(size) for size in groups])


def _sizes(problem: Problem) -> str:
    """The sizes of groups in a sentence."""
    sizes, what = sizes_of(problem), "rows" if problem.ragged == "m" else "elements of K"
    said = f"{min(sizes)} to {max(sizes)} {what}, {sum(sizes) / len(sizes):.1f} on average, {sizes.count(0)} empty"
    return said if isinstance(problem, Sized) else f"{said}; expected, as uneven as a router makes them"


def _wrapped(name: str, text: str) -> str:
    indent = " " * (11 if name not in ("others", "") else 23)
    return textwrap.fill(text, COLUMNS, initial_indent=f"{name:>9}  ", subsequent_indent=indent)


def _why(problem: Problem, gpu: Gpu, choice: Choice) -> str:
    """Where the config comes from, and how its tiles fill the GPU."""
    config = choice.config
    tiles_m, tiles_n = config.tiles(problem)
    tiles = config.programs(problem) if problem.symmetric else tiles_m * tiles_n * problem.batch
    if problem.ragged:
        tiles = as_equal(problem, config).tiles
    waves = f"{tiles * config.ctas * config.split_k / gpu.sms:.2f} waves"
    said = [f"{choice.origin}: {tiles} tile{'' if tiles == 1 else 's'}, {waves} on {gpu.sms} SMs"]
    if problem.symmetric:
        whole = tiles_m * tiles_n * problem.batch
        said.append(f"of the {whole} tiles of the output those that meet the lower triangle, each written twice")
    said += families.family(config.kernel).describe(config, problem, gpu)
    return "; ".join(said)


def _overrides(problem: Problem, gpu: Gpu, kept: str) -> tuple[bool, str]:
    """Whether `enable` has tritonmm compute a problem, and why. kept: why torch does under every policy, or ""."""
    if kept:
        return False, kept
    if problem.accumulation == "invariant":
        return True, "invariant accumulation is tritonmm's"
    wanted, reason = prefers(without_sizes(problem), gpu)
    if isinstance(problem, Sized):  # a call does not know them
        reason = (
            f"for sizes to expect, {reason}; for these torch's is predicted to take {torch_us(problem, gpu):.1f} us"
        )
    return wanted, reason


def _accumulation(problem: Problem, gpu: Gpu, choice: Choice) -> str:
    """In which order the products of an element are summed, and what invariant accumulation costs."""
    invariant = problem.accumulation == "invariant"
    fixed = replace(problem, accumulation="invariant")
    if not fixed.fixes_sums:
        return f"{problem.accumulation}; exact in any order"
    if invariant:
        free = best_in_class(replace(problem, accumulation="any"), gpu)
        cut = f" {chunks(problem)} chunks of {chunk_k(problem)} elements of K;" if chunk_k(problem) else ""
        if free.config == choice.config and not cut:
            return "invariant, at no cost: the fastest config of all has these sums"
        return f"invariant:{cut} {choice.us / free.us - 1:+.1%} of the {free.us:.1f} us of {free.config}"
    if chunk_k(fixed):
        return f"any; invariant accumulation would sum {chunks(fixed)} chunks of K"
    why = choice.config.fits(fixed, gpu).reason
    return f"any; {why}" if why else "any; this config has the sums of invariant accumulation"


def _other(problem: Problem, gpu: Gpu, kernel: str) -> str:
    """The estimate of another kernel family's best config, or why it has none or is not considered."""
    try:
        us = estimated(problem, gpu, kernel).us
    except ValueError as error:
        return f"not legal: {str(error).partition(': ')[2]}"
    rule = families.family(kernel).passed_over(problem, gpu)
    return f"{us:.1f} us estimated" + (f"; {rule}" if rule else "")
