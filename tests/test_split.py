"""The schedule of split tiles, as the device code has it: every part once, and no program waits for ever.

`work_at` of the Hopper kernel runs here as Python, on integers.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonmm.kernels import hopper

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
