"""The space of configs: its size, its spellings, and the problems it is tried on."""

import itertools

import pytest
import torch

from tritonmm import orders
from tritonmm.autotune.measuring import space
from tritonmm.autotune.measuring.space import Space
from tritonmm.problem import Problem


def test_every_combination_once():
    configs = Space()
    found = list(configs)
    assert len(found) == len(configs) == len(set(found))


def test_every_list_reaches_the_configs():
    configs = Space(
        blocks=((64, 32, 16),),
        stages=(2, 5),
        warps=(1,),
        tile_orders=(orders.Hilbert(), orders.SwizzleMerge(3)),
        persistent=(False, True),
    )
    found = {(c.num_stages, c.persistent, str(c.order)) for c in configs}
    assert found == {(s, p, o) for s in (2, 5) for p in (False, True) for o in ("hilbert", "swizzle-merge:3")}
    assert {(c.block_m, c.block_n, c.block_k, c.num_warps, c.kernel) for c in configs} == {(64, 32, 16, 1, "tile")}


def test_configs_that_differ_in_order_follow_each_other():
    blocks = [(c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) for c in Space()]
    changes = sum(a != b for a, b in itertools.pairwise(blocks))
    assert changes == len(set(blocks)) - 1


def test_illegal_combinations_stay_in_the_space():
    (config,) = Space(blocks=((48, 64, 32),), stages=(3,), warps=(4,), tile_orders=(orders.RowMajor(),))
    assert config.block_m == 48


def test_blocks_spelling():
    assert space.blocks("128x256x64") == (128, 256, 64)


@pytest.mark.parametrize("text", ["", "128", "128x256", "128x256x", "-1x2x3", "128x256x64x2", "axbxc", "128,256,64"])
def test_blocks_refuses_other_spellings(text):
    with pytest.raises(ValueError, match=r"128x256x64") as error:
        space.blocks(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("row-major", ["row-major"]),
        ("row-major,swizzle-merge:8", ["row-major", "swizzle-merge:8"]),
        ("swizzle-merge:16,8,hilbert", ["swizzle-merge:16,8", "hilbert"]),
        ("swizzle-merge:16,8@n, swizzle-merge:4,2", ["swizzle-merge:16,8@n", "swizzle-merge:4,2"]),
    ],
)
def test_a_comma_before_a_digit_is_a_factors(text, spelled):
    assert [str(order) for order in space.tile_orders(text)] == spelled


def test_unknown_order_is_named():
    with pytest.raises(ValueError, match="'zigzag'"):
        space.tile_orders("row-major,zigzag")


@pytest.mark.parametrize("layout", space.LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "tf32"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sizes", [(64, 32, 128), (65, 33, 7), (64, 36, 100)], ids=lambda s: "x".join(map(str, s)))
def test_operands_are_stored_as_the_problem_says(sizes, batch, dtype, layout):
    asked = space.problem(*sizes, batch=batch, dtype=dtype, layout=layout)
    a, b, out = space.operands(asked, torch.device("cpu"))
    assert (asked.m, asked.n, asked.k, asked.batch, asked.layout) == (*sizes, batch, layout)
    assert Problem.of(a, b, out, asked.precision) == asked


@pytest.mark.parametrize(("name", "value"), [("dtype", "fp7"), ("layout", "ns")])
def test_problem_names_what_it_refuses(name, value):
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        space.problem(1, 1, 1, **{name: value})


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
def test_a_size_of_2_31_is_refused(name):
    sizes = {"m": 1, "n": 1, "k": 1, "batch": 1}
    with pytest.raises(ValueError, match=rf"{name} is {2**31}; it must be below 2\*\*31"):
        space.problem(**sizes | {name: 2**31})


@pytest.mark.parametrize("layout", space.LAYOUTS)
@pytest.mark.parametrize("ragged", ["m", "k"])
@pytest.mark.parametrize("sizes", [(64, 32, 128), (65, 33, 7)], ids=lambda s: "x".join(map(str, s)))
def test_operands_of_groups_are_stored_as_the_problem_says(sizes, ragged, layout):
    asked = space.problem(*sizes, layout=layout, ragged=ragged, groups=3)
    a, b, out = space.operands(asked, torch.device("cpu"))
    assert (asked.m, asked.n, asked.k, asked.groups, asked.layout) == (*sizes, 3, layout)
    assert (b.dim(), out.dim()) == ((3, 2) if ragged == "m" else (2, 3))
    assert Problem.of(a, b, out, ragged=ragged) == asked
    ends = space.keywords(asked, a.device)["offs"].tolist()
    assert (len(ends), ends[-1]) == (3, asked.m if ragged == "m" else asked.k)


def test_groups_have_no_scales():
    with pytest.raises(ValueError, match="'fp8', which has scales"):
        space.problem(64, 64, 64, dtype="fp8", ragged="m", groups=2)
