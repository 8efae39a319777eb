"""A repeated launch is what Triton's JIT would launch: the same kernel, the same arguments, no tensor kept alive.

Kernels are compiled here and not interpreted, so where the rest of the tests interpret them these run in a process of
their own (`test_compiled`). Triton's C launcher is replaced by one that writes down what it is called with.
"""

import contextlib
import gc
import sys
import weakref
from dataclasses import replace

import pytest
import torch
import triton
from recording import DEVICE, recording
from threads import at_once
from triton.experimental.gluon._runtime import GluonASTSource
from triton.knobs import HookChain

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.device import constexpr_args as static
from tritonmm.dtypes import DTYPES
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.launch import capture, direct, workspace
from tritonmm.launch.bounded import Bounded
from tritonmm.plan import INTERPRETED, bind
from tritonmm.problem import Epilogue, Problem

compiled = pytest.mark.skipif(INTERPRETED, reason="kernels are interpreted here; compiled in a process of its own")

EVERYTHING = Epilogue(scaled=True, bias=True, c=True)
TILE = Config(block_m=32, block_n=32, block_k=32, num_warps=4)
PERSISTENT = Config("persistent", 64, 64, 64, 3, 4, persistent=True)
HOPPER = Config("hopper", 64, 64, 64, 3, 4, persistent=True)
CLUSTER = Config("hopper", 128, 128, 64, 3, 4, persistent=True, cluster="m")

CASES = {
    "tile": (Problem(70, 90, 50, a_alignment=4, b_alignment=4, out_alignment=4), TILE),
    "tile, everything": (Problem(64, 96, 64, batch=2, layout="nt", epilogue=EVERYTHING), TILE),
    "persistent": (Problem(192, 136, 72, layout="tn"), PERSISTENT),
    "persistent, everything": (Problem(192, 136, 72, batch=3, out_dtype="fp32", epilogue=EVERYTHING), PERSISTENT),
    "persistent, masked": (Problem(1, 137, 72, layout="nt", out_alignment=2), PERSISTENT),
    "hopper": (Problem(192, 136, 72, layout="nt"), HOPPER),
    "hopper, everything": (Problem(192, 136, 72, batch=3, layout="tn", epilogue=EVERYTHING), HOPPER),
    "hopper, masked": (Problem(192, 137, 72, layout="nt", out_alignment=2, epilogue=Epilogue(bias=True)), HOPPER),
    "hopper, split K": (Problem(192, 136, 1024, out_dtype="fp32"), replace(HOPPER, split_k=4)),
    "hopper, split tail": (Problem(192, 136, 1024, layout="nt", epilogue=EVERYTHING), replace(HOPPER, split_tail=2)),
}
CASES["hopper, two subtiles"] = (
    Problem(130, 264, 128, layout="nt"),
    replace(HOPPER, block_m=64, block_n=192),
)
SKINNY = Config("skinny", 16, 64, 64, 3, 4, order=orders.RowMajor())
CASES["skinny"] = Problem(7, 136, 256, layout="nt"), SKINNY
CASES["skinny, split K"] = Problem(7, 136, 256, layout="nn", epilogue=EVERYTHING), replace(SKINNY, split_k=3)
CASES["skinny, transposed"] = Problem(136, 7, 256), replace(SKINNY, block_m=64, block_n=16)
SLICED = Config("exact", 32, 32, 16, 4, 1)
EXACT = Problem(70, 136, 256, layout="nt", dtype="fp32", epilogue=EVERYTHING)
CASES["sliced"] = replace(EXACT, epilogue=Epilogue()), SLICED
WEIGHTS = Config("mixed_input", 64, 128, 128, 4, 8, persistent=True)
CASES["weights"] = Problem.dense(64, 256, 256, layout="nt", b_dtype="int8"), WEIGHTS
CASES["weights, two subtiles"] = CASES["weights"][0], replace(WEIGHTS, block_m=40)
CASES["weights, three subtiles"] = (
    Problem.dense(193, 256, 256, layout="nt", b_dtype="int8"),
    replace(WEIGHTS, block_m=200, num_stages=3),
)
CASES["weights, int4"] = Problem.dense(64, 256, 96, layout="nt", b_dtype="int4"), WEIGHTS
CASES["sliced, split K"] = EXACT, replace(SLICED, split_k=3)
if HAS_CLUSTERS:
    CASES["hopper, cluster"] = Problem(256, 264, 128, layout="nt"), CLUSTER

SUMS, FLAGS = torch.empty(1 << 20), torch.zeros(1 << 10, dtype=torch.int32)


@pytest.fixture
def recorder(monkeypatch):
    with recording() as found:
        monkeypatch.setattr(workspace, "sums", lambda count, device: SUMS[4 * found.stream :])
        monkeypatch.setattr(workspace, "flags", lambda count, device: FLAGS[4 * found.stream :])
        yield found


def plan_of(problem, config):
    return bind(problem, config, gpus.spec("h200"), DEVICE)


def tensor(shape, dtype, letter="n", offset=0, gap=0):
    """An aligned tensor of this layout, `offset` elements further, with `gap` elements between its rows."""
    *batch, rows, cols = (*shape[:-2], shape[-1], shape[-2]) if letter == "t" else shape
    count = rows * (cols + gap)
    for size in batch:
        count *= size
    memory = torch.zeros(count + 128, dtype=dtype)
    start = -memory.data_ptr() % 128 // memory.itemsize + offset
    x = memory[start : start + count].view(*batch, rows, cols + gap)[..., :cols]
    return x.mT if letter == "t" else x


def operands(problem, **where):
    """Tensors that the problem's plan takes, and the operands of its epilogue."""
    p = problem
    batch = () if p.batch == 1 else (p.batch,)
    a = tensor((*batch, p.m, p.k), DTYPES[p.dtype], p.layout[0], **where)
    b = tensor((*batch, p.b_rows, p.n), DTYPES[p.b_dtype], p.layout[1], **where)
    out = tensor((*batch, p.m, p.n), DTYPES[p.out_dtype], **where)
    c = tensor((p.m, 1), torch.float32) if p.epilogue.c else None
    bias = torch.zeros(p.n, dtype=DTYPES[p.dtype]) if p.epilogue.bias else None
    return (a, b, out), {"c": c, "bias": bias}


def jit_call(recorder, plan, tensors, **rest):
    """What the launcher is called with by the JIT."""
    arguments, options = plan.arguments(*tensors, **rest)
    plan.kernel[(plan.grid,)](*arguments, **options)
    return recorder.calls.pop()


@compiled
@pytest.mark.parametrize("case", ["hopper", "weights", "sliced"])
def test_tritons_cache_on_disk_tells_versions_apart(case, recorder, monkeypatch):
    """What properties of the static argument return is in neither its fields nor the kernel's source."""
    plan = plan_of(*CASES[case])
    arguments, _ = plan.arguments(*operands(plan.problem)[0])
    (argument,) = (x for x in arguments if isinstance(x, static.ConstexprArgs))
    (name,) = (n for n, x in zip(plan.kernel.arg_names, arguments, strict=False) if x is argument)

    def filed_under():
        return GluonASTSource(plan.kernel, {name: "constexpr"}, {name: argument}).hash()

    before = filed_under()
    assert filed_under() == before
    monkeypatch.setattr(static, "digest", lambda: "of other files")
    assert filed_under() != before


@compiled
@pytest.mark.parametrize("case", CASES)
def test_a_repeated_launch_is_the_jits(case, recorder, monkeypatch):
    plan = plan_of(*CASES[case])
    tensors, rest = operands(plan.problem)
    plan(*tensors, **rest)
    assert len(plan.launches) == 1
    recorder.calls.clear()
    for i in range(3):
        recorder.stream = 7 + i
        tensors, rest = operands(plan.problem)
        numbers = {"alpha": 0.5 + i, "beta": -i}
        expected = jit_call(recorder, plan, tensors, **numbers, **rest)
        with monkeypatch.context() as patch:
            patch.setattr(plan.kernel, "run", None)  # the JIT would raise
            for _ in range(2):  # with maps that are encoded, and with those kept
                plan(*tensors, **numbers, **rest)
        assert recorder.calls == [expected, expected]
        recorder.calls.clear()
    assert len(plan.launches) == 1


@compiled
@pytest.mark.parametrize("case", ["tile", "hopper", "hopper, everything", "hopper, split K", "sliced, split K"])
def test_a_launch_that_can_be_skipped_is_another_one(case, recorder, monkeypatch):
    """In turns with that of the same tensors which cannot; and what skips it may lie anywhere."""
    plan = plan_of(*CASES[case])
    assert plan.skippable
    tensors, rest = operands(plan.problem)
    known = [{}, *({"skip": tensor((1, 1), torch.int32, offset=offset)} for offset in (0, 4, 1))]
    for skip in known:
        expected = jit_call(recorder, plan, tensors, **rest, **skip)
        for _ in range(2):
            plan(*tensors, **rest, **skip)
        assert recorder.calls == [expected, expected]
        recorder.calls.clear()
    assert len(plan.launches) == 3
    with monkeypatch.context() as patch:
        patch.setattr(plan.kernel, "run", None)  # the JIT would raise
        for skip in known:
            plan(*tensors, **rest, **skip)
    assert len(set(recorder.calls)) == 4
    assert plan.repeated(*tensors, **rest) is next(iter(plan.launches.values()))


@compiled
@pytest.mark.parametrize(
    "case", ["persistent", "skinny", "hopper, assigned tiles", *(["hopper, cluster"] if HAS_CLUSTERS else [])]
)
def test_what_cannot_be_skipped_is_refused(case, recorder):
    assigned = Problem(40, 11_200, 1024, layout="nt"), replace(HOPPER, block_n=160, num_stages=7)
    plan = plan_of(*(CASES | {"hopper, assigned tiles": assigned})[case])
    assert not plan.skippable
    tensors, rest = operands(plan.problem)
    with pytest.raises(ValueError, match=r"skip is given, and a launch of .* cannot be skipped"):
        plan(*tensors, **rest, skip=torch.zeros(1, dtype=torch.int32))


@compiled
def test_misaligned_tensors_take_another_kernel(recorder):
    plan = plan_of(Problem(64, 96, 64, a_alignment=2, b_alignment=2, out_alignment=2), TILE)
    for offset in (0, 1, 8, 9):
        tensors, _ = operands(plan.problem, offset=offset)
        straight, _ = operands(plan.problem)
        for one in range(4):  # all of them, or one alone
            mixed = [x if one in (i, 3) else y for i, (x, y) in enumerate(zip(tensors, straight, strict=True))]
            expected = jit_call(recorder, plan, mixed)
            plan(*mixed)
            plan(*mixed)
            assert recorder.calls == [expected, expected], f"offset {offset}, tensor {one}"
            recorder.calls.clear()
    # Offsets 1 and 9 are both 2 bytes past a multiple of 16, and 8 is a multiple.
    assert len(plan.launches) == 5
    assert len({launch.function for launch in plan.launches.values()}) == 5


@compiled
@pytest.mark.parametrize("case", ["tile", "persistent", "hopper"])
def test_other_strides_take_another_launch(case, recorder):
    plan = plan_of(*CASES[case])
    straight, _ = operands(plan.problem)
    known = [straight]
    for gap in (8, 24):
        wide, _ = operands(plan.problem, gap=gap)
        known += [wide, *([*straight[:i], wide[i], *straight[i + 1 :]] for i in range(3))]
    for _ in range(2):
        for tensors in known:
            expected = jit_call(recorder, plan, tensors)
            plan(*tensors)
            assert recorder.calls.pop() == expected
    assert len(plan.launches) == len(known)


@compiled
def test_the_same_address_with_other_strides_has_another_map(recorder):
    plan = plan_of(*CASES["hopper"])
    (a, b, out), _ = operands(plan.problem, gap=64)
    for width in (72, 80, 136):
        other = torch.as_strided(a, a.shape, (width, 1))
        for _ in range(2):
            expected = jit_call(recorder, plan, (other, b, out))
            plan(other, b, out)
            assert recorder.calls.pop() == expected


@compiled
def test_c_of_another_kind_takes_another_launch(recorder):
    problem, config = CASES["tile, everything"]
    plan = plan_of(problem, config)
    (a, b, out), rest = operands(problem)
    whole = torch.zeros(2, 64, 96)
    broadcast = whole[:1], whole[0], whole[0, :1], whole[0, :, :1], whole[0, 0], whole[..., 1:2]
    other_strides = tensor((64, 96), torch.float32, gap=3), tensor((64, 96), torch.float32, letter="t")
    misaligned = tensor((64, 96), torch.float32, offset=1)
    for c in (whole, *broadcast, whole.bfloat16(), *other_strides, misaligned):
        for _ in range(2):
            expected = jit_call(recorder, plan, (a, b, out), c=c, bias=rest["bias"])
            plan(a, b, out, c=c, bias=rest["bias"])
            assert recorder.calls.pop() == expected
    for bias in (tensor((1, 96), torch.bfloat16, offset=1)[0], torch.zeros(96)):
        for _ in range(2):
            expected = jit_call(recorder, plan, (a, b, out), c=whole, bias=bias)
            plan(a, b, out, c=whole, bias=bias)
            assert recorder.calls.pop() == expected


@compiled
def test_a_map_is_encoded_once_for_an_address(recorder):
    plan = plan_of(*CASES["hopper"])
    (a, b, out), _ = operands(plan.problem)
    plan(a, b, out)
    before = recorder.encoded
    others = [operands(plan.problem)[0] for _ in range(5)]
    for _ in range(3):
        plan(a, b, out)
        for other, _, _ in others:
            plan(other, b, out)
    assert recorder.encoded == before + 5


@compiled
def test_maps_and_launches_are_bounded(recorder, monkeypatch):
    monkeypatch.setattr(direct, "MAPS", Bounded(6))
    monkeypatch.setattr(direct, "LAUNCHES", Bounded(2))
    plan = plan_of(*CASES["hopper"])
    for gap in (0, 8, 16, 24):
        for _ in range(4):
            tensors, _ = operands(plan.problem, gap=gap)
            expected = jit_call(recorder, plan, tensors)
            plan(*tensors)
            assert recorder.calls.pop() == expected
        maps = [m for x in plan.launches.values() for m in (x.a_maps, x.b_maps, x.out_maps)]
        assert len(plan.launches) <= 2
        assert sum(map(len, maps)) <= 6


@compiled
def test_no_tensor_is_kept_alive(recorder):
    for case in ("tile", "persistent, everything", "hopper"):
        plan = plan_of(*CASES[case])
        for _ in range(2):
            tensors, rest = operands(plan.problem)
            plan(*tensors, **rest)
            alive = [weakref.ref(x.untyped_storage()) for x in tensors]
            del tensors, rest
            gc.collect()
            assert [x() for x in alive] == [None] * 3, case


@compiled
@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("kind", ["chain", "function"])
def test_hooks_see_every_launch(name, kind, recorder, monkeypatch):
    plan = plan_of(*CASES["tile"])
    tensors, _ = operands(plan.problem)
    plan(*tensors)
    seen = []
    chain = HookChain()
    chain.add(seen.append)
    monkeypatch.setattr(triton.knobs.runtime, name, chain if kind == "chain" else seen.append)
    for _ in range(3):
        plan(*tensors)
    assert len(seen) == 3
    chain.remove(seen.append)
    assert direct.hooked() == (kind == "function")


@compiled
def test_a_plan_of_another_device_than_the_current_one(recorder):
    plan = plan_of(*CASES["tile"])
    tensors, _ = operands(plan.problem)
    plan(*tensors)
    (expected,) = recorder.calls
    recorder.device = DEVICE.index + 1
    plan(*tensors)
    assert recorder.calls == [expected, expected]
    assert recorder.device == DEVICE.index + 1


@compiled
def test_an_unknown_release_launches_by_the_jit(recorder, monkeypatch):
    monkeypatch.setattr(direct, "KNOWN", False)
    plan = plan_of(*CASES["hopper"])
    for _ in range(3):
        tensors, _ = operands(plan.problem)
        expected = jit_call(recorder, plan, tensors)
        plan(*tensors)
        assert recorder.calls.pop() == expected
    assert not plan.launches


@compiled
def test_a_kernel_that_needs_scratch_memory_launches_by_the_jit(recorder, monkeypatch):
    plan = plan_of(*CASES["tile"])
    tensors, _ = operands(plan.problem)
    arguments, options = plan.arguments(*tensors)
    kernel = plan.kernel[(plan.grid,)](*arguments, **options)
    for name in ("global_scratch_size", "profile_scratch_size"):
        with monkeypatch.context() as patch:
            patch.setattr(kernel.run, name, 128)
            assert direct.repeatable(plan.kernel, kernel, plan.grid, DEVICE.index, arguments, options, {}) is None


@pytest.fixture
def eager_switches():
    """Threads take turns at almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@compiled
def test_a_cold_plan_in_eight_threads(recorder, eager_switches):
    plan = plan_of(*CASES["hopper"])
    known = [operands(plan.problem)[0] for _ in range(8)]
    expected = {jit_call(recorder, plan, x, alpha=i) for i, x in enumerate(known)}

    def run(i):
        for _ in range(50):
            plan(*known[i], alpha=i)

    at_once(8, run)
    assert len(recorder.calls) == 8 * 50
    assert set(recorder.calls) == expected


def test_what_the_problem_does_not_have_is_refused():
    problem = Problem(64, 96, 64, epilogue=Epilogue(bias=True))
    plan = bind(problem, TILE, gpus.spec("h200"), torch.device("cpu"))
    a, b, out = (torch.zeros(x, dtype=torch.bfloat16) for x in ((64, 64), (64, 96), (64, 96)))
    bias = torch.zeros(96)
    for wrong, message in (
        ((a[:32], b, out), r"a has shape \[32, 64\]; .* takes \[1, 64, 64\]"),
        ((a, b.T.contiguous(), out), r"b has shape \[96, 64\]"),
        ((a, b, out.expand(2, 64, 96)), r"out has shape \[2, 64, 96\]"),
        ((a.half(), b, out), "a is torch.float16; .* takes torch.bfloat16"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(*wrong, bias=bias)
    with pytest.raises(ValueError, match="bias is missing"):
        plan(a, b, out)
    with pytest.raises(ValueError, match="c is given"):
        plan(a, b, out, bias=bias, c=out)
    with pytest.raises(ValueError, match=r"bias has shape \[96\] and strides \(2,\)"):
        plan(a, b, out, bias=torch.zeros(192)[::2])
    for skip, found in ((torch.zeros(2, dtype=torch.int32), r"torch.int32 \[2\]"), (out[:1, :1], r"torch.bfloat16")):
        with pytest.raises(ValueError, match=f"skip is {found}.*; it must be one torch.int32"):
            plan(a, b, out, bias=bias, skip=skip)


def test_the_oldest_entries_of_all_dicts_leave_first():
    bounded, tables = Bounded(4), [{}, {}, {}]
    for i in range(20):
        bounded.put(tables[i % 3], i, i)
        bounded.put(tables[i % 3], i, -i)  # again: no entry more
        kept = {key: value for table in tables for key, value in table.items()}
        assert kept == {j: -j for j in range(max(0, i - 3), i + 1)}


def test_a_bound_holds_in_threads():
    bounded, table = Bounded(16), {}

    def put(seed):
        for i in range(2000):
            bounded.put(table, (seed + i * 7) % 61, i)

    at_once(4, put)
    assert len(table) == len(bounded.entries) == 16


def test_relaxed_mode_is_left_as_it_was_found(monkeypatch):
    modes = []

    class Driver:
        mode = 0

        def __call__(self, pointer):
            found = pointer._obj
            self.mode, found.value = found.value, self.mode
            modes.append(self.mode)
            return 0

    monkeypatch.setattr(capture, "_exchange", lambda driver=Driver(): driver)  # noqa: B008
    with contextlib.suppress(KeyError), capture.relaxed():
        assert modes == [capture.RELAXED]
        raise KeyError
    assert modes == [capture.RELAXED, 0]
    monkeypatch.setattr(capture, "_exchange", lambda: lambda pointer: 3)  # CUDA is not initialised
    with capture.relaxed():
        pass
