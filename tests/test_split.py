"""The schedules of split tiles, as the device code has them: every part once, and no program waits for ever.

`work_at` of the Hopper kernel and the shares of the weights kernel run here as Python, on integers.
"""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm.config import Config
from tritonmm.kernels import hopper, weights, weights_output
from tritonmm.problem import Problem
from tritonmm.weights import share

TILING = SimpleNamespace(split=True, order="row-major")


def work(programs, whole, tiles, splits, steps, monkeypatch):
    """Each program's items in its order: (tile, its first K step, their end, from one to the next, its split tile)."""
    language = SimpleNamespace(num_programs=lambda axis: programs, minimum=min)
    items = whole + tiles * splits
    schedule = (items, whole, splits, 0, 0, 0, steps, None, None)
    with monkeypatch.context() as patch:
        patch.setattr(hopper, "gl", language)
        return [
            [hopper.work_at.fn(item, schedule, TILING) for item in range(program, items, programs)]
            for program in range(min(programs, items))
        ]


@pytest.fixture(scope="module")
def monkeypatch():
    with pytest.MonkeyPatch.context() as found:
        yield found


sizes = st.integers(1, 40)


@given(sizes, st.integers(0, 60), sizes, st.integers(2, 12), st.integers(1, 30))
def test_every_step_of_every_tile_is_multiplied_once(monkeypatch, programs, whole, tiles, splits, steps):
    lists = work(max(programs, splits), whole, tiles, splits, steps, monkeypatch)
    done = Counter((tile, k) for items in lists for tile, first, end, by, _ in items for k in range(first, end, by))
    assert done == Counter({(tile, k): 1 for tile in range(whole + tiles) for k in range(steps)})
    parts = Counter((slot, first) for items in lists for _, first, _, _, slot in items if slot >= 0)
    assert parts == Counter({(slot, part): 1 for slot in range(tiles) for part in range(splits)})


@given(sizes, st.integers(0, 60), sizes, st.integers(2, 12))
def test_no_program_waits_for_ever(monkeypatch, programs, whole, tiles, splits):
    """All programs run at once. One at a part of a split tile goes on when the programs of all its parts are there."""
    lists = work(max(programs, splits), whole, tiles, splits, 100, monkeypatch)
    while any(lists):
        at = Counter(items[0][4] for items in lists if items)
        passes = [items for items in lists if items and (items[0][4] < 0 or at[items[0][4]] == splits)]
        assert passes, "every program waits"
        for items in passes:
            del items[0]


@given(sizes, sizes, st.integers(2, 12))
def test_neighbours_have_the_same_part_of_neighbouring_tiles(monkeypatch, programs, tiles, splits):
    programs = max(programs, splits)
    together = min(programs // splits, tiles)
    first = [items[0] for items in work(programs, 0, tiles, splits, 100, monkeypatch)[: together * splits]]
    assert [(part, slot) for _, part, _, _, slot in first] == [
        (part, slot) for part in range(splits) for slot in range(together)
    ]


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 400))
def test_shares_of_weights_cover_every_step_once(tiles, steps, programs):
    programs = min(programs, tiles * steps)
    shares = list(itertools.pairwise(begins_of(tiles, steps, programs)))
    assert {end - begin for begin, end in shares} <= {tiles * steps // programs, -(-tiles * steps // programs)}
    slots = set()
    for program, (begin, end) in enumerate(shares):
        for tile in range(begin // steps, -(-end // steps)):
            if end < (tile + 1) * steps or begin > tile * steps:  # a part
                is_first = begin <= tile * steps
                assert (program, is_first) not in slots, "two parts of a program at one place"
                slots.add((program, is_first))


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_programs_of_one_tile_have_shares_of_that_alone(tiles, steps, split):
    split = min(split, steps)
    begins = begins_of(tiles, steps, tiles * split)
    assert begins[::split] == list(range(0, tiles * steps + 1, steps))


def begins_of(tiles, steps, programs):
    """Where the programs' shares begin, and the last one ends."""
    schedule = (0, 0, steps, *share(Config(block_k=64), Problem(1, 1, 64 * steps), programs, tiles), None, ())
    begins = [weights.begin_of.fn(program, schedule) for program in range(programs + 1)]
    assert begins == sorted(set(begins)), "a program has nothing to do"
    assert (begins[0], begins[-1]) == (0, tiles * steps)
    for program, (begin, end) in enumerate(itertools.pairwise(begins)):
        assert {weights_output.program_of.fn(step, schedule) for step in (begin, end - 1)} == {program}
    return begins
