"""The split-K protocol: parts are added in order, whoever arrives last, and flags are ready for the next launch."""

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tritonmm.device import split_k

AREA = 8
COUNT = 0x7FFFFFFF


@triton.jit
def fixup_kernel(parts, out, writes, workspace, flags, arrivals, SPLIT_K: tl.constexpr, AREA: tl.constexpr):
    """out[tile] = the sum of parts[tile, :], in programs of which the i-th to run has part arrivals[i] of a tile."""
    tile = tl.program_id(0) // SPLIT_K
    part = tl.load(arrivals + tl.program_id(0) % SPLIT_K)
    at = tl.arange(0, AREA)
    acc = tl.load(parts + (tile * SPLIT_K + part) * AREA + at)
    sums = split_k.slot_sums(workspace, tile, SPLIT_K * AREA)
    acc, last = split_k.last_arriver_fixup(acc, at, sums, flags + tile, part, SPLIT_K, AREA, 2)
    if last:
        tl.store(out + tile * AREA + at, acc)
        tl.atomic_add(writes + tile, 1)


def fixup_fault(tiles: int, splits: int, arrivals: tuple[int, ...], flags: torch.Tensor) -> str:
    """What is wrong with one launch, or ""."""
    parts = torch.randn(tiles, splits, AREA, generator=torch.Generator().manual_seed(splits)) * 1e3
    parts[:, :, 0] = torch.tensor([1e8, 1.0, -1e8, 3.0, 1e8, -1.0][:splits])  # another order, another sum
    out, writes = torch.full((tiles, AREA), float("nan")), torch.zeros(tiles, dtype=torch.int32)
    workspace = torch.full((tiles * splits * AREA,), float("nan"))
    order = torch.tensor(arrivals, dtype=torch.int32)
    fixup_kernel[(tiles * splits,)](parts, out, writes, workspace, flags, order, splits, AREA)
    if not (writes == 1).all():
        return f"tiles were written {writes.tolist()} times"
    expected = parts[:, 0].clone()
    for part in range(1, splits):
        expected += parts[:, part]
    if not torch.equal(out, expected):
        return f"sums are {out.tolist()}, in the order of the parts {expected.tolist()}"
    return f"flags are {flags.tolist()}" if (flags & COUNT).any() else ""


def replay_fault() -> str:
    """What is wrong with launches that follow each other on the same flags, in every order of arrival, or ""."""
    flags = torch.zeros(3, dtype=torch.int32)
    for splits in (2, 3, 4, 3):
        for arrivals in itertools.permutations(range(splits)):
            fault = fixup_fault(3, splits, arrivals, flags)
            if fault:
                return f"{splits} parts arrived as {arrivals}: {fault}"
    return ""


def test_the_last_arriver_adds_in_the_order_of_the_parts_and_leaves_no_count():
    assert replay_fault() == ""


@pytest.mark.parametrize("phase", [0, -(2**31)])
def test_flags_of_either_phase_serve_any_number_of_parts(phase):
    flags = torch.full((2,), phase, dtype=torch.int32)
    assert fixup_fault(2, 6, (5, 0, 3, 1, 4, 2), flags) == ""
    assert fixup_fault(2, 2, (1, 0), flags) == ""


@triton.jit
def arrive_without_reset(flag, begins, weight, total):
    before = tl.atomic_add(flag, weight)
    return before + weight == total, before


@triton.jit
def arrive_if_first(flag, begins, weight, total):
    added = weight + tl.where(begins, COUNT - (total - 1), 0)
    before = tl.atomic_add(flag, added)
    return (before & COUNT) == 0, before


@triton.jit
def add_own_first(acc, at, sums, flag, part, SPLIT_K: tl.constexpr, AREA: tl.constexpr, UNROLL: tl.constexpr):
    tl.store(sums + part * AREA + at, acc)
    last, _ = split_k.arrive(flag, part == 0, 1, SPLIT_K)
    if last:
        for other in range(SPLIT_K):
            if other != part:
                acc += tl.load(sums + other * AREA + at)
    return acc, last


@pytest.mark.parametrize(
    ("name", "mutant", "symptom"),
    [
        ("arrive", arrive_without_reset, "flags are"),
        ("arrive", arrive_if_first, "sums are"),
        ("last_arriver_fixup", add_own_first, "in the order of the parts"),
    ],
    ids=["no reset", "first arriver", "own part first"],
)
def test_a_broken_protocol_is_noticed(name, mutant, symptom, monkeypatch):
    monkeypatch.setattr(split_k, name, mutant)
    assert symptom in replay_fault()


@triton.jit
def weights_kernel(flags, weights, arrivals, complete, total):
    part = tl.load(arrivals + tl.program_id(0))
    last, _ = split_k.arrive(flags, part == 0, tl.load(weights + part), total)
    tl.store(complete + tl.program_id(0), last.to(tl.int32))


@pytest.mark.parametrize("weights", [(1, 1), (7, 1, 3), (1, 2**20, 5, 1)], ids=str)
def test_parts_of_any_weight_complete_a_tile_once(weights):
    flags = torch.zeros(1, dtype=torch.int32)
    for arrivals in itertools.permutations(range(len(weights))):
        complete = torch.full((len(weights),), -1, dtype=torch.int32)
        tensors = (torch.tensor(x, dtype=torch.int32) for x in (weights, arrivals))
        weights_kernel[(len(weights),)](flags, *tensors, complete, sum(weights))
        assert complete.tolist() == [0] * (len(weights) - 1) + [1], f"{weights} arrived as {arrivals}"
        assert not (flags & COUNT).any()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("first", "end"), [(0, 1), (2, 7), (3, 8)])
def test_shares_of_a_tile_are_added_in_the_order_of_the_programs(first, end, slots, monkeypatch):
    """With two slots, the program that begins the tile left its part in its second one, all others in their first."""
    workspace = np.random.default_rng(end).normal(0, 1e3, (8, slots, AREA)).astype(np.float32)
    at = np.arange(AREA)

    def load(addresses, mask, other, cache_modifier):
        return np.where(mask, workspace.ravel()[np.where(mask, addresses, 0)], np.float32(other))

    language = SimpleNamespace(load=load, cast=lambda x, dtype: dtype(x), int32=int, int64=int, static_range=range)
    for name in ("slot_of", "slot_sums"):
        monkeypatch.setattr(split_k, name, getattr(split_k, name).fn)
    monkeypatch.setattr(split_k, "tl", language)
    found = split_k.add_parts.fn(np.zeros(AREA, np.float32), 0, first, end - 1, at, at < AREA - 1, AREA, slots, 4)
    expected = np.zeros(AREA, np.float32)
    for program in range(first, end):
        expected[:-1] += workspace[program, slots - 1 if program == first else 0, :-1]
    assert found.tolist() == expected.tolist()


class Threads:
    """The operations of `arrive_and_wait` for one thread a program, which arrive in a given order."""

    def __init__(self, arrivals, flag):
        self.arrivals, self.flag, self.arrived = arrivals, np.int32(flag), 0
        self.changed = threading.Condition()
        self.mine = threading.local()
        self.int32, self.int64 = int, int

    def where(self, condition, x, y):
        return x if condition else y

    def debug_barrier(self):
        pass

    def atomic_add(self, flag, added, sem, scope):
        assert (sem, scope) == ("acq_rel", "gpu")
        with self.changed:
            assert self.changed.wait_for(lambda: self.arrivals[self.arrived] == self.mine.part, timeout=60)
            before = self.flag
            self.flag = np.int32((int(before) + int(added) + 2**31) % 2**32 - 2**31)
            self.arrived += 1
            self.changed.notify_all()
            return before

    def inline_asm_elementwise(self, ptx, *others, **options):
        assert "ld.acquire.gpu" in ptx
        with self.changed:
            seen = self.arrived
            self.changed.wait_for(lambda: self.arrived != seen or self.arrived == len(self.arrivals), timeout=60)
            return self.flag


@pytest.mark.parametrize("phase", [0, -(2**31)])
@pytest.mark.parametrize("arrivals", list(itertools.permutations(range(3))), ids=str)
def test_no_part_goes_on_before_all_have_arrived(arrivals, phase, monkeypatch):
    threads = Threads(arrivals, phase)
    monkeypatch.setattr(split_k, "tl", threads)
    monkeypatch.setattr(split_k, "COUNT", COUNT)
    monkeypatch.setattr(split_k, "arrive", split_k.arrive.fn)
    passed = []

    def program(part):
        threads.mine.part = part
        split_k.arrive_and_wait.fn(SimpleNamespace(to=lambda dtype: 0), part == 0, len(arrivals))
        passed.append(threads.arrived)

    running = [threading.Thread(target=program, args=(part,)) for part in arrivals]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert passed == [len(arrivals)] * len(arrivals)
    assert threads.flag ^ np.int32(phase) == -(2**31), "the count is not zero, or the phase did not flip"
