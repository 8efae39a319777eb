"""The interface of a kernel family: everything that the rest of tritonmm uses of a kernel."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from tritonmm.config import Config
    from tritonmm.gpu import Gpu
    from tritonmm.launch import Plan
    from tritonmm.model.time import Time
    from tritonmm.problem import Problem


class Bounded(NamedTuple):
    """Candidates with a common lower bound.

    bound: microseconds; none of the configs is estimated to be faster, in any order of tiles.
    configs: read at most once, so it may be a generator, which makes them only if they are needed.
    """

    bound: float
    configs: Iterable["Config"]


class Family(Protocol):
    """The top level of a family's package, `tritonmm.families.NAME`, or any object with these attributes.

    name: its name in `Config.kernel`.
    portable: True if it is plain Triton, for every GPU's backend and the interpreter.
    persistent: True or False if all its configs are or none is; None if it is a choice of `Config`.
    complete: True if its candidates have all stages and orders worth a trial, so that a tuner adds none.
    grouped: True if it also multiplies groups, `Problem.ragged`; if not, it is never asked about such problems.
    dynamic: True if a program takes its next tile when it is free for it, so that neighbouring SMs multiply unrelated
        tiles; False if the kernel's start decides which program has which tile.
    defaults: fields of `Config(name)`; legal for a plain GEMM of the family's dtypes, or for groups of 16 bits where it
        multiplies only these.
    """

    name: str
    portable: bool
    persistent: bool | None
    complete: bool
    grouped: bool
    dynamic: bool
    defaults: Mapping[str, Any]

    def reason(self, config: "Config", problem: "Problem", gpu: "Gpu") -> str:
        """Why the config cannot compute the problem, "" if it can. The problem's operands are already repacked.

        The only statement of legality: launches, tuners and tests call it.
        """

    def shared_bytes(self, config: "Config", problem: "Problem", gpu: "Gpu") -> int:
        """Shared memory of one CTA on a GPU in bytes, at least what the compiler takes."""

    def passed_over(self, problem: "Problem", gpu: "Gpu") -> str:
        """Why the candidates are not considered unless the family is named; "" if they are."""

    def candidates(self, problem: "Problem", gpu: "Gpu") -> Iterable["Config"]:
        """Configs worth estimating, legal or not, each in one order of tiles; deterministic."""

    def bounded(self, problem: "Problem", gpu: "Gpu") -> Iterable[Bounded]:
        """The candidates, in the same sequence, in groups with a common lower bound.

        `select` skips a group whose bound is above the shortest estimate.
        """

    def orders(self, config: "Config", problem: "Problem", gpu: "Gpu") -> Iterable["Config"]:
        """The config in the other orders of tiles worth estimating; none where the kernel has one order."""

    def estimate(self, config: "Config", problem: "Problem", gpu: "Gpu") -> "Time":
        """Estimated time of a config; infinite where the family has no estimate for it."""

    def lower_bound(self, config: "Config", problem: "Problem", gpu: "Gpu") -> float:
        """Microseconds that no order of tiles makes shorter: at most what `estimate` says of any of `orders`.

        `select` estimates a config only where its bound does not rule it out.
        """

    def plan(self, problem: "Problem", config: "Config", gpu: "Gpu", device: "torch.device") -> "Plan":
        """The launch of a legal config. Imports device code inside: Gluon does not import under the interpreter."""

    def describe(self, config: "Config", problem: "Problem", gpu: "Gpu") -> list[str]:
        """The family's lines in `explain`: how programs divide the tiles."""
