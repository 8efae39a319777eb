"""Repeats a launch that Triton's JIT has made once, with one call of Triton's C launcher.

The JIT binds, specialises and looks up all arguments in each call, which costs more than the launch. Its decisions
depend on the tensors' strides, on which addresses are multiples of 16, and on what a plan fixes. So tensors of equal
strides and alignment use the same kernel, and only addresses, tensor maps, alpha and beta change. A tensor map depends
on an address and on what does not change, and is encoded once for each address.

The launcher's signature is internal to Triton and changed in 3.7. Unknown releases of Triton, and GPUs that are not
NVIDIA's, launch through the JIT.
"""

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver

from tritonmm.launch import context
from tritonmm.launch.bounded import Bounded

FLAT = triton.__version__.startswith("3.6.")
"""True for Triton 3.6, whose launcher takes the kernel's arguments one by one after 13 arguments of its own."""

KNOWN = FLAT or triton.__version__.startswith(("3.7.", "3.8.", "3.9."))
"""True if this Triton release's launcher is supported here."""

OWN = 13 if FLAT else 0
"""Arguments of the launcher before the kernel's."""

STREAM = 3
"""Position of the stream among the launcher's own arguments."""

RUNTIME = triton.knobs.runtime
"""The knobs that hold Triton's launch hooks."""

LAUNCHES = Bounded(2048)
"""The launches of all plans and operations: 1.3 KiB each, 5 KiB with TMA or of three kernels; 10 MiB in all."""

MAPS = Bounded(4096)
"""The tensor maps of all launches: 0.4 KiB each, 1.6 MiB in all."""


def hooked() -> bool:
    """True if a launch hook is installed, by a profiler for example. Launches then go through the JIT."""
    start, end = RUNTIME.launch_enter_hook, RUNTIME.launch_exit_hook
    return bool(getattr(start, "calls", start) or getattr(end, "calls", end))


MORE_DESCRIPTORS = {"a_desc_1": 0, "a_desc_2": 0, "b_desc_1": 1, "out_desc_1": 2}
"""Descriptor arguments of kernels that load or store an operand in blocks of several shapes, and whether they describe
a, b or out."""

DESCRIPTORS = {"a_desc", "b_desc", "out_desc", *MORE_DESCRIPTORS}
"""The descriptor arguments that a repeated launch can replace."""


class TensorMaps(dict):
    """The tensor maps of one operand by address. Everything else in a map is fixed."""

    __slots__ = ("dtype", "geometry", "kind", "make", "meta")

    def __init__(self, descriptor, kind: str, meta: dict):
        super().__init__()
        self.make = type(descriptor)
        # Without `base`, which would keep the first call's tensor alive.
        names = [field.name for field in dataclasses.fields(descriptor) if field.name != "base"]
        self.geometry = {name: getattr(descriptor, name) for name in names}
        self.dtype = descriptor.base.dtype
        self.kind = kind
        self.meta = meta

    def encode(self, x: torch.Tensor, index: int) -> Any:
        """Makes and keeps the map for x's address. index: the device of x."""
        context.bind(index)
        if x.dtype != self.dtype:  # bytes along the columns of x, which the kernel reads in words
            x = x.mT.view(self.dtype)
        descriptor = self.make(base=x, **self.geometry)
        found = _expanded([self.kind], [self.meta], [descriptor])[0]
        MAPS.put(self, x.data_ptr(), found)
        return found


class Kept:
    """A compiled kernel with the values of its arguments, as Triton's C launcher takes them.

    places: of the arguments among the values, by name.
    """

    __slots__ = (
        "annotations", "cooperative", "function", "grid", "index", "kernel", "launch", "metadata", "pdl", "places",
        "signature", "stream_of", "values",
    )  # fmt: skip

    def __init__(self, kernel, grid: int, index: int, values: list, places: dict[str, int]):
        launcher = kernel.run
        self.kernel = kernel  # from Triton 3.9 on, a kernel without references unloads its code
        self.grid = grid
        self.index = index
        self.places = places
        self.function = kernel.function
        self.metadata = kernel.packed_metadata
        self.cooperative = launcher.launch_cooperative_grid
        self.pdl = launcher.launch_pdl
        self.launch = _c_launcher(launcher)
        self.annotations = self.signature = None
        if FLAT:
            own = grid, 1, 1, 0, self.function, self.cooperative, self.pdl, None, None, self.metadata
            values = [*own, None, None, None, *values]
        else:
            self.annotations, self.signature = launcher.arg_annotations, launcher.kernel_signature
        self.values = values
        self.stream_of = driver.active.get_current_stream

    def send(self, values: list) -> None:
        """Launches on the current stream of the device `index`, which is the current one."""
        if FLAT:
            values[STREAM] = self.stream_of(self.index)
            self.launch(*values)
        else:
            self.launch(
                self.grid, 1, 1, self.stream_of(self.index), self.function, self.cooperative, self.pdl, self.metadata,
                None, None, None, None, None, self.annotations, self.signature, values,
            )  # fmt: skip


class Launch(Kept):
    """A compiled kernel and its arguments for tensors of certain strides and alignments.

    A launch copies `values` and replaces elements at these positions: tensor maps (or addresses, if the kernel takes
    those) at `a`, `b` and `out_map`; addresses at `out`, `c`, `bias`, `scale_a`, `scale_b`, `groups`, `skip`, `sums`
    and `flags`; numbers at `alpha` and `beta`. A position is None if the kernel has no such argument. more: positions
    of other tensor maps, with these maps and which of a, b and out they describe.
    """

    __slots__ = (
        "a", "a_maps", "alpha", "b", "b_maps", "beta", "bias", "c", "current_device", "flags", "groups", "more", "out",
        "out_map", "out_maps", "scale_a", "scale_b", "skip", "sums",
    )  # fmt: skip

    def __init__(self, kernel, grid: int, index: int, values: list, places: dict[str, int], maps: dict):
        super().__init__(kernel, grid, index, values, places)
        self.a_maps, self.b_maps, self.out_maps = (maps.get(f"{name}_desc") for name in ("a", "b", "out"))
        self.a = places["a_desc" if self.a_maps is not None else "a"]
        self.b = places["b_desc" if self.b_maps is not None else "b"]
        self.more = tuple((places[name], maps[name], which) for name, which in MORE_DESCRIPTORS.items() if name in maps)
        self.out, self.out_map = places["out"], places.get("out_desc")
        self.alpha, self.beta = places["alpha"], places["beta"]
        self.c, self.bias = places.get("c"), places.get("bias")
        self.scale_a, self.scale_b = places.get("scale_a"), places.get("scale_b")
        self.groups, self.skip = places.get("groups"), places.get("skip")
        self.sums, self.flags = places.get("workspace"), places.get("flags")
        # torch.cuda.current_device without the check that CUDA is initialised.
        self.current_device = getattr(torch._C, "_cuda_getDevice", driver.active.get_current_device)

    hooked = staticmethod(hooked)

    def again(
        self, plan, a, b, out, a_at, b_at, out_at, alpha, beta, c, bias, scales=None, groups=None, skip=None
    ) -> None:  # fmt: skip
        """Launches for tensors at the addresses a_at, b_at and out_at."""
        if self.current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.again(plan, a, b, out, a_at, b_at, out_at, alpha, beta, c, bias, scales, groups, skip)
        values = self.values.copy()
        if self.a_maps is None:
            values[self.a] = a_at
            values[self.b] = b_at
        else:
            values[self.a] = self.a_maps.get(a_at) or self.a_maps.encode(a, self.index)
            values[self.b] = self.b_maps.get(b_at) or self.b_maps.encode(b, self.index)
            if self.out_maps is not None:
                values[self.out_map] = self.out_maps.get(out_at) or self.out_maps.encode(out, self.index)
            for place, maps, which in self.more:
                at = (a_at, b_at, out_at)[which]
                values[place] = maps.get(at) or maps.encode((a, b, out)[which], self.index)
        values[self.out] = out_at
        values[self.alpha] = alpha
        values[self.beta] = beta
        if self.c is not None:
            values[self.c] = c.data_ptr()
        if self.bias is not None:
            values[self.bias] = bias.data_ptr()
        if self.scale_a is not None:
            values[self.scale_a] = scales[0].data_ptr()
        if self.scale_b is not None:
            values[self.scale_b] = scales[1].data_ptr()
        if self.groups is not None:
            values[self.groups] = groups.data_ptr()
        if self.skip is not None:
            values[self.skip] = skip.data_ptr()
        if self.flags is not None:
            sums, flags = plan.workspace()  # must stay alive until the launch is enqueued
            if sums is not None:
                values[self.sums] = sums.data_ptr()
            values[self.flags] = flags.data_ptr()
        self.send(values)


def repeatable(
    jit, kernel, grid: int, index: int, arguments: tuple, options: dict, operands: dict[str, str]
) -> Launch | None:
    """The launch that `jit` has made with these arguments, to be repeated; None if it cannot be.

    kernel: the kernel that `jit` compiled for it.
    operands: "a" or "b" by the name of the kernel's argument, for arguments with other names.

    A launch cannot be repeated if the kernel needs memory from Triton, as an instrumented kernel does.
    """
    found = _bound(jit, kernel, arguments, options, operands)
    return Launch(kernel, grid, index, *found) if found else None


def kept(jit, kernel, grid: int, index: int, arguments: tuple, options: dict) -> Kept | None:
    """The same for a kernel that no plan has, and without descriptors."""
    found = _bound(jit, kernel, arguments, options, {})
    return Kept(kernel, grid, index, *found[:2]) if found and not found[2] else None


def warn_not_kept(error: Exception) -> None:
    """Says that keeping a launch has failed. The launch is made, so the error is not raised: a caller that falls back
    on torch would compute again."""
    warnings.warn(f"tritonmm: a launch was not kept, which makes calls slower: {error!r}", stacklevel=3)


def _bound(
    jit, kernel, arguments: tuple, options: dict, operands: dict[str, str]
) -> tuple[list, dict[str, int], dict[str, TensorMaps]] | None:
    """The values of the launch's arguments, their places, and the tensor maps of descriptors; or None."""
    if not KNOWN or not isinstance(kernel, CompiledKernel):
        return None
    if type(kernel.run).__module__ != "triton.backends.nvidia.driver":
        return None
    launcher = kernel.run
    if launcher.global_scratch_size or launcher.profile_scratch_size or getattr(launcher, "gsan_enabled", False):
        return None
    constants = {name: x for name, x in options.items() if name in jit.arg_names}
    bound = jit.signature.bind(*arguments, **constants).arguments
    kinds = list(kernel.src.signature.values())
    metas = list(getattr(kernel.metadata, "tensordesc_meta", None) or ())
    described = [name for name, kind in zip(bound, kinds, strict=True) if _is_described(kind)]
    if len(described) != len(metas) or not DESCRIPTORS.issuperset(described):
        return None
    places: dict[str, int] = {}
    maps: dict[str, TensorMaps] = {}
    place = OWN
    for (name, x), kind in zip(bound.items(), kinds, strict=True):
        if kind != "constexpr":
            places[operands.get(name, name)] = place
        if name in described:
            maps[name] = TensorMaps(x, kind, metas[len(maps)])
            place += 2 * len(x.shape)
        place += 1
    values = _expanded(kinds, metas, bound.values())
    for i, x in enumerate(values):
        if isinstance(x, torch.Tensor):
            values[i] = x.data_ptr()
    for name, known in maps.items():
        MAPS.put(known, bound[name].base.data_ptr(), values[places[name] - OWN])
    return values, places, maps


def _is_described(kind) -> bool:
    return isinstance(kind, str) and kind.startswith("tensordesc")


def _expanded(kinds: list, metas: list, arguments: Iterable) -> list:
    """The arguments with each descriptor replaced by its tensor map, shape and strides. Triton's own function does
    it."""
    from triton.backends.nvidia.driver import wrap_handle_tensordesc

    signature = dict(enumerate(kinds))
    if FLAT:
        return wrap_handle_tensordesc(lambda *found: list(found[OWN:]), signature, metas)(*[None] * OWN, *arguments)
    return wrap_handle_tensordesc(lambda found: list(found), signature, metas)(tuple(arguments))


def _c_launcher(launcher):
    if not FLAT:
        return driver.active.utils.launch
    # For kernels with descriptors, the launcher is wrapped in a function that encodes them.
    with contextlib.suppress(TypeError, KeyError):
        return inspect.getclosurevars(launcher.launch).nonlocals["launcher"]
    return launcher.launch
