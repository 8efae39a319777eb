"""The schedules of split tiles, as the device code has them: every part once, and no program waits for ever.

`work_at` of the Hopper kernel and the shares of the mixed-input kernel run here as Python, on integers.
"""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families.hopper import scheduler as hopper
from tritonmm.families.mixed_input import scheduler as weights_shares
from tritonmm.families.mixed_input.rules import assisted, fixup, rounds, shared_work
from tritonmm.problem import Problem


def work(programs, whole, tiles, splits, steps, monkeypatch, chunk_steps=0):
    """Each program's items in its order: (tile, its first K step, their end, from one to the next, its split tile)."""
    language = SimpleNamespace(num_programs=lambda axis: programs, minimum=min)
    items = whole + tiles * splits
    scheduler = SimpleNamespace(items=items, whole=whole, splits=splits, steps=steps)
    tiling = SimpleNamespace(split=True, order="row-major", chunk_steps=chunk_steps)
    with monkeypatch.context() as patch:
        patch.setattr(hopper, "gl", language)
        return [
            [hopper.work_at.fn(item, scheduler, tiling) for item in range(program, items, programs)]
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


@given(sizes, st.integers(0, 60), sizes, st.integers(2, 12), st.integers(1, 30), st.data())
def test_a_part_of_a_long_k_is_one_chunk(monkeypatch, programs, whole, tiles, splits, chunk_steps, data):
    """The parts are chunks of neighbouring steps, in the order of K; whole tiles have all steps."""
    steps = chunk_steps * (splits - 1) + data.draw(st.integers(1, chunk_steps))
    lists = work(max(programs, splits), whole, tiles, splits, steps, monkeypatch, chunk_steps)
    found = Counter((tile, first, end, by) for items in lists for tile, first, end, by, _ in items)
    chunks = [(first, min(first + chunk_steps, steps)) for first in range(0, steps, chunk_steps)]
    expected = [(tile, 0, steps, 1) for tile in range(whole)]
    expected += [(whole + tile, first, end, 1) for tile in range(tiles) for first, end in chunks]
    assert found == Counter(expected)


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


@given(st.integers(1, 150), st.integers(1, 20), st.integers(1, 40), st.sampled_from([64, 256]))
def test_persistent_programs_of_weights_have_every_step_once(monkeypatch, tiles, steps, programs, block_m):
    config = Config("mixed_input", block_m, persistent=True)
    programs = min(programs, tiles * steps if block_m == 64 else tiles)
    lists, schedule = weights_work(config, tiles, steps, programs, monkeypatch)
    done = Counter((tile, k) for items in lists for tile, first, end, by in items for k in range(first, end, by))
    assert done == Counter({(tile, k): 1 for tile in range(tiles) for k in range(steps)})
    cut = fixup(config, programs, tiles) == "last-arriver"
    first_shared = rounds(config, programs, tiles) * programs if cut else tiles
    slots = set()
    for program, items in enumerate(lists):
        assert items, "a program has nothing to do"
        for tile, first, end, _ in items:
            if end - first < steps:
                assert tile >= first_shared, "a tile of a round is cut"
                assert (program, first == 0) not in slots, "two parts of a program at one place"
                slots.add((program, first == 0))
                for step in (first, end - 1):
                    at = (tile - first_shared) * steps + step
                    assert weights_shares.program_of.fn(at, schedule) == program
    whole = [tile for items in itertools.zip_longest(*lists) for tile, *_ in filter(None, items)]
    assert whole[:first_shared] == list(range(first_shared)), "programs that run together have tiles far apart"


@given(st.integers(0, 4), st.integers(1, 20), st.integers(0, 20), st.integers(2, 20))
def test_two_programs_each_have_halves_of_a_tile_of_the_last_round(monkeypatch, whole, tail, idle, steps):
    """Programs 2i and 2i + 1 have tile i of it, after all their whole tiles; the last programs have none of it."""
    programs = 2 * tail + idle
    lists, _ = weights_work(
        Config("mixed_input", 256, persistent=True, split_tail=2), whole * programs + tail, steps, programs, monkeypatch
    )
    for program, items in enumerate(lists):
        assert items[:whole] == [(round * programs + program, 0, steps, 1) for round in range(whole)]
        half = (0, steps // 2) if program % 2 == 0 else (steps // 2, steps)
        shared = [(whole * programs + program // 2, *half, 1)] if program < 2 * tail else []
        assert items[whole:] == shared


@given(st.integers(0, 4), st.integers(1, 20), st.integers(1, 20), st.integers(2, 70))
def test_programs_without_a_tile_in_the_last_round_assist_the_others(monkeypatch, whole, more, idle, steps):
    """Program i has the first steps of tile i of it. Of each tile one other program has the rest, after all its whole
    tiles."""
    tail = idle + more
    programs = tail + idle
    config = Config("mixed_input", 256, persistent=True, split_tail=2)
    lists, schedule = weights_work(config, whole * programs + tail, steps, programs, monkeypatch)
    own = steps - schedule.shared_steps
    assert 0 < own < steps
    for program, items in enumerate(lists):
        assert items[:whole] == [(round * programs + program, 0, steps, 1) for round in range(whole)]
        mine = [(program, 0, own)] if program < tail else [(i, own, steps) for i in range(program - tail, tail, idle)]
        assert items[whole:] == [(whole * programs + tile, first, end, 1) for tile, first, end in mine]
    assert max(map(len, lists)) == whole + assisted(programs, whole * programs + tail)


@given(st.integers(0, 150), st.integers(1, 20), st.integers(1, 40))
def test_programs_have_every_tile_of_groups_once(monkeypatch, tiles, steps, programs):
    """Also where there are fewer tiles than programs, as only the device finds out."""
    config = Config("mixed_input", 16, persistent=True, order=orders.parse("groups/row-major"))
    lists, _ = weights_work(config, tiles, steps, programs, monkeypatch)
    assert sorted(item for items in lists for item in items) == [(tile, 0, steps, 1) for tile in range(tiles)]
    assert all(items == sorted(items) for items in lists)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12))
def test_programs_of_one_tile_of_weights_have_its_steps_in_turn(monkeypatch, tiles, steps, split):
    split = min(split, steps)
    lists, _ = weights_work(Config("mixed_input", 64, split_k=split), tiles, steps, tiles * split, monkeypatch)
    assert lists == [[(tile, part if split > 1 else 0, steps, split)] for tile in range(tiles) for part in range(split)]


def weights_work(config, tiles, steps, programs, monkeypatch):
    """Each program's items in its order, (tile, its first K step, their end, the step), and the schedule."""
    problem = Problem(1, 1, config.block_k * steps)
    schedule = weights_shares.Schedule(0, 1, tiles, steps, *shared_work(config, problem, programs, tiles), None, ())
    how = fixup(config, programs, tiles)
    spec = SimpleNamespace(
        fixup=how, in_rounds=rounds(config, programs, tiles) > 0, splits_tail=how in ("exchange", "assist")
    )
    with monkeypatch.context() as patch:
        for name in (
            "rounds_of", "begin_of", "tail_of", "assistants", "split_steps", "steps_of_tail", "work_in_tail",
        ):  # fmt: skip
            patch.setattr(weights_shares, name, getattr(weights_shares, name).fn)
        lists = []
        for program in range(programs):
            patch.setattr(weights_shares, "gl", language(program, programs))
            if isinstance(config.order, orders.Grouped):
                patch.setattr(weights_shares, "rows_of_tiles", lambda table: table)
                at, end = weights_shares.line_of_groups.fn(schedule, weights_shares.Groups(tiles, 0))
            else:
                at, end = weights_shares.line_of.fn(schedule, spec)
            items = []
            while at < end:
                *item, at = weights_shares.work_at.fn(at, end, schedule, spec)
                items.append(tuple(item))
            lists.append(items)
    return lists, schedule


def language(program, programs):
    return SimpleNamespace(
        program_id=lambda axis: program,
        num_programs=lambda axis: programs,
        minimum=min,
        where=lambda condition, x, y: x if condition else y,
        cdiv=lambda x, y: -(-x // y),
        to_tensor=int,
    )
