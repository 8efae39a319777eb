"""enable, disable, use: every matrix product of torch goes through tritonmm where that is faster.

What is replaced are the CUDA kernels of the operators at the bottom, to which matmul, linear, einsum, attention and
their derivatives come down: below autograd, autocast, torch.func, DTensor and functionalization, which therefore work
as before. torch.compile's graphs call the same operators. torch's own kernels are kept, and called for all that
tritonmm does not multiply (complex and integers, operands that disagree, subclasses, empty products), and fp64, for
which they are at least as fast: so their results stay what they are, and their errors too. So they are where a kernel
of tritonmm cannot be compiled or launched.

The kernels are registered once, by the first `enable` or `use`, and stay: after `disable` they call torch's. To
unregister them is not safe while other threads multiply: torch frees a kernel although a thread may have looked it up
and be waiting for Python's lock to call it, and nothing shows that thread (segmentation faults after 300 to 6,000
times). To register them is safe but for calls that torch makes in boxed form, by torch.ops or under a mode, which read
a table entry in two parts: one failed in some 60,000 registrations under load, none of 23,000 by torch's functions.

_int_mm and _scaled_mm are replaced too, the latter for scales of tensors, rows and 128-blocks, and _scaled_mm_v2, which
is torch.nn.functional.scaled_mm, for their recipes. Not replaced: _addmm_activation, whose epilogue tritonmm's kernels
do not have; mm.dtype with its kin; products of groups.
"""

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Iterator

import torch

from tritonmm import forks
from tritonmm.policy import prefers
from tritonmm.torch_ops import aten_quantized as quantized_leaves
from tritonmm.torch_ops.aten import LEAVES, kernels
from tritonmm.torch_ops.routes import Switch, Wanted, kept_by_torch

_WANTED: dict[str, Wanted] = {
    "faster": lambda problem, gpu: not kept_by_torch(problem) and prefers(problem, gpu)[0],
    "always": lambda problem, gpu: not kept_by_torch(problem),
}


class Override:
    """The override of the kernels of one dispatch key, "CUDA" but in tests; one for a key in a process."""

    def __init__(self, dispatch_key: str = "CUDA"):
        self.dispatch_key = dispatch_key
        self._lock = forks.rlock()
        self._enabled = ""
        self._scopes: list[list[str]] = []
        self._switches: list[Switch] | None = None

    def enable(self, policy: str = "faster") -> None:
        _check_policy(policy)
        with self._lock:
            self._enabled = policy
            for switch in self._switches or ():
                switch.forget()
            self._turn()

    def disable(self) -> None:
        with self._lock:
            self._enabled = ""
            self._turn()

    @contextlib.contextmanager
    def use(self, policy: str = "faster") -> Iterator[None]:
        _check_policy(policy)
        scope = [policy]
        with self._lock:
            self._scopes.append(scope)
            self._turn()
        try:
            yield
        finally:
            with self._lock:
                self._scopes = [other for other in self._scopes if other is not scope]
                self._turn()

    def _turn(self) -> None:
        """Turns the kernels to what is asked for: by the scope that was entered last, or else by `enable`."""
        policy = self._scopes[-1][0] if self._scopes else self._enabled
        if policy and self._switches is None:
            self._switches = self._registered()
        for switch in self._switches or ():
            if policy:
                switch.turn_on(policy, _WANTED[policy])
            else:
                switch.turn_off()

    def _registered(self) -> list[Switch]:
        """The switches of the kernels, which are now registered, and off."""
        library = torch.library.Library("aten", "IMPL")
        _REGISTERED.append(library)
        explicit = "allow_override" in inspect.signature(library.impl).parameters
        options = {"allow_override": True} if explicit else {}
        of_leaves = (kernels(leaf, self.dispatch_key) for leaf in LEAVES)
        found = list(itertools.chain(*of_leaves, quantized_leaves.kernels(self.dispatch_key)))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for switch, kernel in found:
                library.impl(switch.operator, kernel, self.dispatch_key, **options)
        return [switch for switch, _ in found]


_REGISTERED: list[torch.library.Library] = []
"""What is registered; a library that is deleted unregisters its kernels."""


def _check_policy(policy: str) -> None:
    if policy not in _WANTED:
        raise ValueError(f"policy is {policy!r}; it must be one of {', '.join(_WANTED)}")


_CUDA = Override()


def enable(policy: str = "faster") -> None:
    """From here on, torch's matrix products on GPUs are tritonmm's.

    policy: "faster" leaves to torch what its own kernels are predicted to do faster, "always" only what tritonmm does
        not multiply. `explain` says which and why.

    It holds for the whole process, all threads and devices. Enabling again changes the policy, chooses configs again,
    by what was tuned since, and tries again what failed: one `disable` ends it. A product that another thread has under
    way goes either way. Raises ValueError for another policy.

    Where tritonmm fails, because it cannot compile or launch a kernel, torch's kernel computes the product and those
    like it, and a warning says why, once for each cause. Without enough memory only that one product is torch's.

    Make the first call in a process before other threads multiply under modes such as FlopCounterMode or through
    torch.ops: it registers kernels in a table that torch does not lock for readers, and their calls may fail in that
    moment. Products through torch's functions go on meanwhile. Any later `enable`, `disable` or `use` only sets
    attributes in Python, and is safe whatever threads do.
    """
    _CUDA.enable(policy)


def disable() -> None:
    """Gives torch's products back to its own kernels. `use` blocks that are still open stay as they are.

    Until the process ends each of torch's products costs up to 5 us more host time than before the first `enable`, and
    holds Python's lock for that time: docs/drop-in.md says how that was measured, and why it is so.
    """
    _CUDA.disable()


def use(policy: str = "faster") -> contextlib.AbstractContextManager[None]:
    """`enable(policy)` for the length of a `with` block, then as before; for the whole process, as `enable`.

    Blocks may be nested, and overlap in several threads: the one entered last decides. A block goes on with what
    earlier ones of its policy have chosen, and leaves to torch what failed in them.
    """
    return _CUDA.use(policy)
