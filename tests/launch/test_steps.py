"""Kernels launched in turn: a repeated launch is what Triton's JIT would launch, and bits are those of the first call.

Compiled and not interpreted, as `test_direct` says.
"""

import gc
import weakref

import pytest
import torch
import triton
from recording import DEVICE, recording
from triton.knobs import HookChain

from tritonmm import gpu as gpus
from tritonmm.launch import decode_attention, direct, steps, workspace
from tritonmm.launch.bounded import Bounded
from tritonmm.ozaki import decide, merge, planes, reconstruct
from tritonmm.ozaki.planes import Planes
from tritonmm.plan import INTERPRETED

compiled = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted here; compiled in a process of its own")

MODULI = 5


@pytest.fixture
def recorder():
    with recording() as found:
        yield found


@pytest.fixture(autouse=True)
def _on_a_gpu_of_their_own(monkeypatch):
    """CPU tensors are launched as if they were on DEVICE, with no launch made before."""

    class OnDevice(steps.Steps):
        def launch(self, about, device, *rest):
            super().launch(about, DEVICE, *rest)

    monkeypatch.setattr(decide, "DECIDE", OnDevice())
    monkeypatch.setattr(planes, "QUANTIZE", OnDevice())
    monkeypatch.setattr(reconstruct, "RECONSTRUCT", OnDevice())
    monkeypatch.setattr(merge, "MERGE", OnDevice())
    monkeypatch.setattr(decode_attention, "DECODE", OnDevice())


def memory(*shape, dtype=torch.float32, offset=0):
    """Aligned memory of a shape, `offset` elements further."""
    whole = torch.zeros(torch.Size(shape).numel() + 128, dtype=dtype)
    start = -whole.data_ptr() % 128 // whole.itemsize + offset
    return whole[start : start + torch.Size(shape).numel()].view(shape)


class Product:
    """The tensors of a product whose launches are looked at."""

    def __init__(self, offset=0, added=True, letter="n", skipped=False):
        self.a, self.b, self.out = memory(1, 24, 40, offset=offset), memory(1, 40, 32), memory(1, 24, 32)
        self.a = memory(1, 40, 24, offset=offset).mT if letter == "t" else self.a
        self.c, self.bias = (memory(1, 24, 32, offset=offset), memory(32)) if added else (None, None)
        self.of_a, self.of_b = (
            Planes(
                memory(MODULI, lines, 48, dtype=torch.int8),
                memory(1, lines, dtype=torch.int32),
                memory(1, dtype=torch.int32),
                memory(1, lines, dtype=torch.int64),
            )
            for lines in (24, 32)
        )
        self.proved = memory(1, dtype=torch.int32)
        self.refused = memory(1, dtype=torch.int32) if skipped else None
        self.norms = [memory(1, lines, 1, dtype=torch.int64) for lines in (24, 32)]
        self.sums, self.more = (memory(MODULI, 24, 32, dtype=torch.int8) for _ in range(2))

    def jit_calls(self, recorder, alpha, beta):
        """What the launcher is called with by the JIT."""
        for kernel, grid, arguments, options in (
            *planes.steps(*self.operands(), MODULI),
            *decide.steps(*self.judged()),
            *merge.steps(*self.merged()),
            *reconstruct.steps(*self.arguments(alpha, beta), self.refused),
        ):
            kernel[(grid,)](*arguments, **options)
        found = recorder.calls.copy()
        recorder.calls.clear()
        return found

    def operands(self):
        both = zip((self.a, self.b.mT), self.norms, (self.of_a, self.of_b), strict=True)
        return [planes.Operand(*operand) for operand in both]

    def judged(self):
        return self.of_a, self.of_b, 40, torch.float32, MODULI, decide.Verdict(self.proved, self.refused), True

    def merged(self):
        return self.sums, self.more, MODULI, self.refused

    def arguments(self, alpha, beta):
        epilogue = reconstruct.Epilogue(alpha, beta, self.c, self.bias)
        return self.sums, self.a, self.b, self.of_a, self.of_b, self.out, epilogue, MODULI

    def launch(self, recorder, monkeypatch, alpha, beta):
        """The calls of the launcher by the operations that are tested."""
        with monkeypatch.context() as patch:
            given = iter(self.operands())
            patch.setattr(planes.Operand, "of", lambda *_: next(given))
            planes.quantize_both(self.a, self.b.mT, MODULI, (24, 32), True)
            decide.decide(*self.judged())
            merge.merge(*self.merged())
            reconstruct.reconstruct(*self.arguments(alpha, beta), skip=self.refused)
        found = recorder.calls.copy()
        recorder.calls.clear()
        return found


def without_jit(patch):
    """From here on the JIT would raise."""
    for kernel in (
        planes.chunk_norms_kernel, planes.scales_kernel, planes.residues_kernel, decide.decide_kernel,
        merge.merge_kernel, reconstruct.reconstruct_kernel, reconstruct.nonfinite_kernel,
    ):  # fmt: skip
        patch.setattr(kernel, "run", None)


@compiled
def test_repeated_launches_are_the_jits(recorder, monkeypatch):
    kinds = [{}, {"added": False}, {"letter": "t"}, {"offset": 1}, {"offset": 4}, {"skipped": True}]
    for alpha in (1.0, 0.5):
        for kind in kinds:
            product = Product(**kind)
            assert product.launch(recorder, monkeypatch, alpha, 1.0) == product.jit_calls(recorder, alpha, 1.0), kind
    for i in range(2):
        recorder.stream = 7 + i
        for kind in kinds:
            product = Product(**kind)
            expected = product.jit_calls(recorder, 0.25 + i, 3.0 - i)
            with monkeypatch.context() as patch:
                without_jit(patch)
                assert product.launch(recorder, patch, 0.25 + i, 3.0 - i) == expected, kind
    assert len(decide.DECIDE.repeated) == len(merge.MERGE.repeated) == 2  # with and without what skips
    assert len(planes.QUANTIZE.repeated) == 3  # the one 16 bytes further is aligned
    assert len(reconstruct.RECONSTRUCT.repeated) == 10


def attention(length, masked=True, pad=0, offset=0, dim=16):
    """Operands of attention: a cache that has room for `pad` elements more after each key."""
    query, key = memory(2, 4, dim, dtype=torch.bfloat16), memory(2, 2, length, dim + pad, dtype=torch.bfloat16)
    value = memory(2, 2, length, dim + pad, dtype=torch.bfloat16, offset=offset)
    mask = memory(2, length, dtype=torch.bool) if masked else None
    return query, key[..., :dim], value[..., :dim], mask, memory(2, 4, dim, dtype=torch.bfloat16)


@compiled
def test_repeated_launches_of_attention_are_the_jits(recorder, monkeypatch):
    """A cache that has grown has another length and other strides, and the same kernels. Another number of parts is
    another grid. Long masks are read by a kernel of their own."""
    room, ends = (memory(4096), memory(64, dtype=torch.int32)), memory(2, 3, dtype=torch.int32)
    monkeypatch.setattr(workspace, "sums", lambda *_: room[0])
    monkeypatch.setattr(workspace, "flags", lambda *_: room[1])
    monkeypatch.setattr(gpus, "default", lambda: gpus.spec("h200"))  # the recorder's current device is no real one
    arguments = decode_attention.arguments

    def at_known_addresses(*given):
        tensors, numbers = arguments(*given)
        return tensors | {"ends": None if tensors["ends"] is None else ends}, numbers

    monkeypatch.setattr(decode_attention, "arguments", at_known_addresses)

    def calls():
        found = recorder.calls.copy()
        recorder.calls.clear()
        return found

    def by_jit(given, scale):
        about = *at_known_addresses(*given, scale), decode_attention.constants_of(*given[:4])
        for kernel, grid, given_to_kernel, options in decode_attention.steps_of(*about):
            kernel[(grid,)](*given_to_kernel, **options)
        return calls()

    def launched(given, scale):
        decode_attention.fill(*given, scale)
        return calls()

    kinds = [{}, {"masked": False}, {"pad": 3}, {"pad": 8}, {"offset": 1}, {"dim": 24}]
    for kind in kinds:
        for length in (100, 300, 5000):
            given = attention(length, **kind)
            expected = by_jit(given, 0.25)
            assert len(expected) == (2 if length > 4096 and "masked" not in kind else 1)
            assert launched(given, 0.25) == expected, kind
    repeated = len(decode_attention.DECODE.repeated)
    for kind in kinds:
        for length in (1, 99, 128, 257, 311, 384, 4900):
            given = attention(length, **kind)
            expected = by_jit(given, 0.5)
            with monkeypatch.context() as patch:
                for kernel in (decode_attention.decode_attention_kernel, decode_attention.mask_ends_kernel):
                    patch.setattr(kernel, "run", None)
                assert launched(given, 0.5) == expected, (kind, length)
    assert len(decode_attention.DECODE.repeated) == repeated


@compiled
def test_no_tensor_is_kept_alive(recorder, monkeypatch):
    for _ in range(2):
        product = Product()
        product.launch(recorder, monkeypatch, 1.0, 1.0)
        alive = [weakref.ref(x.untyped_storage()) for x in (product.a, product.norms[0], product.sums, product.out)]
        del product
        gc.collect()
        assert [x() for x in alive] == [None] * 4


@compiled
def test_launches_are_bounded(recorder, monkeypatch):
    monkeypatch.setattr(direct, "LAUNCHES", Bounded(2))
    for kind in ({}, {"letter": "t"}, {"offset": 1}, {}):
        product = Product(**kind)
        assert product.launch(recorder, monkeypatch, 1.0, 1.0) == product.jit_calls(recorder, 1.0, 1.0)
        kept = planes.QUANTIZE, decide.DECIDE, merge.MERGE, reconstruct.RECONSTRUCT
        assert sum(len(each.repeated) for each in kept) <= 2


@compiled
def test_hooks_see_every_launch(recorder, monkeypatch):
    product, seen = Product(), []
    product.launch(recorder, monkeypatch, 1.0, 1.0)
    chain = HookChain()
    chain.add(seen.append)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", chain)
    for _ in range(2):
        product.launch(recorder, monkeypatch, 1.0, 1.0)
    assert len(seen) == 2 * 7


@compiled
def test_an_unknown_release_launches_by_the_jit(recorder, monkeypatch):
    monkeypatch.setattr(direct, "KNOWN", False)
    for _ in range(2):
        product = Product()
        assert product.launch(recorder, monkeypatch, 1.0, 1.0) == product.jit_calls(recorder, 1.0, 1.0)
    assert not planes.QUANTIZE.repeated
