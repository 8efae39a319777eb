"""Kernels of one operation that are launched in turn: by Triton's JIT the first time, and without it from then on.

They have no plan, and no tensor maps. Two launches of an operation whose shapes, strides, dtypes, alignments and
constants are equal differ by addresses and numbers alone.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tritonmm.launch import capture, context, direct, interpreter


class Step(NamedTuple):
    """One launch: a kernel, its programs, its arguments in turn, and its constants and options by name."""

    kernel: Any
    grid: int
    arguments: tuple
    options: dict[str, Any]


class Repeated(NamedTuple):
    """A launch that was made before. places: of the addresses and numbers that change, by the kernel's names."""

    kept: direct.Kept
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The launches of one operation. Safe to call from several threads and streams, and in a capture.

    repeated: launches made before, by everything that their kernels and constants depend on. `direct.LAUNCHES` bounds
        how many are kept.
    """

    repeated: dict[tuple, tuple[Repeated, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def launch(
        self,
        about: Hashable,
        device: torch.device,
        tensors: Mapping[str, torch.Tensor | None],
        numbers: dict[str, float],
        make: Callable[[], list[Step]],
    ) -> None:
        """Launches what `make` returns, on the current stream of `device`, which is the current one.

        about: everything that `make` depends on besides `tensors`, `numbers` and the alignment of their addresses.
        tensors, numbers: the arguments that change from call to call, by the name that all kernels have for them. None
            if there is no such tensor.
        """
        addresses = {name: x.data_ptr() for name, x in tensors.items() if x is not None}
        key = about, device.index, tuple([not at & 15 for at in addresses.values()])
        found = self.repeated.get(key)
        if found is None or direct.hooked():
            return self._launch_by_jit(key, device, {*addresses, *numbers}, make())
        given: dict[str, float] = addresses | numbers
        for kept, places in found:
            values = kept.values.copy()
            for name, place in places:
                values[place] = given[name]
            kept.send(values)
        return None

    def _launch_by_jit(self, key: tuple, device: torch.device, changing: set[str], steps: list[Step]) -> None:
        """Launches through Triton's JIT, which compiles if needed, and keeps the launches if all can be repeated."""
        on_gpu = device.type == "cuda"
        if on_gpu:
            context.bind(device.index)
        with interpreter.exclusive(), capture.relaxed():
            kernels = [kernel[(grid,)](*arguments, **options) for kernel, grid, arguments, options in steps]
        if not on_gpu or key in self.repeated:
            return
        try:
            found = [
                direct.kept(step.kernel, kernel, step.grid, device.index, step.arguments, step.options)
                for step, kernel in zip(steps, kernels, strict=True)
            ]
        except Exception as error:  # the kernels are launched
            direct.warn_not_kept(error)
            return
        if all(found):
            repeated = (
                Repeated(kept, tuple((name, at) for name, at in kept.places.items() if name in changing))
                for kept in found
                if kept
            )
            direct.LAUNCHES.put(self.repeated, key, tuple(repeated))
