"""The interface of a kernel family: all that the rest of tritonmm asks of a kernel."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from tritonmm.config import Config
    from tritonmm.gpu import Gpu
    from tritonmm.launch import Plan
    from tritonmm.model.time import Time
    from tritonmm.problem import Problem


class Family(Protocol):
    """What a family's package, `tritonmm.families.NAME`, has at its top level; any object with these will do.

    name: as `Config.kernel` says it.
    portable: whether it is plain Triton, which runs on every GPU's backend and in the interpreter.
    persistent: True or False where all configs are, or none is: `Config.persistent` is that, whatever is given. None
        where it is a choice.
    complete: whether its candidates have all the stages and orders worth a trial, so that a tuner adds none.
    defaults: the fields of a `Config` that is given none; legal for a plain GEMM of the family's kind.
    """

    name: str
    portable: bool
    persistent: bool | None
    complete: bool
    defaults: Mapping[str, Any]

    def reason(self, config: "Config", problem: "Problem", gpu: "Gpu") -> str:
        """Why the config cannot compute the problem, whose operands are already repacked; "" if it can.

        The only statement of legality: no launch, tuner or test has another.
        """

    def shared_bytes(self, config: "Config", problem: "Problem") -> int:
        """Shared memory of one CTA in bytes, at least what the compiler takes."""

    def passed_over(self, problem: "Problem", gpu: "Gpu") -> str:
        """Why the candidates are not considered unless the family is named; "" if they are."""

    def candidates(self, problem: "Problem", gpu: "Gpu") -> Iterable["Config"]:
        """Configs worth estimating, legal or not, each in one order of tiles; deterministic."""

    def orders(self, config: "Config", problem: "Problem", gpu: "Gpu") -> Iterable["Config"]:
        """The config in the other orders of tiles worth estimating; none where the kernel has one order."""

    def estimate(self, config: "Config", problem: "Problem", gpu: "Gpu") -> "Time":
        """Estimated time of a config; infinite where the family has no estimate for it."""

    def adapted(self, config: "Config", tuned_for: "Problem", problem: "Problem", gpu: "Gpu") -> Iterable["Config"]:
        """A config that was tuned for one problem as it suits another nearby."""

    def plan(self, problem: "Problem", config: "Config", gpu: "Gpu", device: "torch.device") -> "Plan":
        """The launch of a legal config. Device code is imported inside: Gluon has none under the interpreter."""

    def describe(self, config: "Config", problem: "Problem", gpu: "Gpu") -> list[str]:
        """What the family has to say of a config in `explain`: how its tiles are distributed."""
