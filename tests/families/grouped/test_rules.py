"""What the grouped kernel for Hopper refuses and why, and the laws of how it cuts the rows of a tile."""

import re
from dataclasses import replace

import pytest

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families import family
from tritonmm.families.grouped.rules import (
    BOX,
    CONSUMERS,
    MOST_ROWS,
    PIECE,
    WIDE_BOX,
    WIDEST,
    boxes,
    out_buffers,
    subtiles,
    widths,
)
from tritonmm.problem import KINDS, Problem

H200 = gpus.spec("h200")
BLOCK_M = (64, 128, 256)
FIELDS = {
    "rows": {"layout": "nt", "ragged": "m", "groups": 8},
    "rows of fp8": KINDS["fp8-row"] | {"layout": "nt", "ragged": "m", "groups": 8},
    "rows of exact fp8": KINDS["fp8-row-ieee"] | {"layout": "nt", "ragged": "m", "groups": 8},
    "k": {"layout": "tn", "ragged": "k", "groups": 8},
}


def problem(what="rows", m=1000, n=768, k=512, **fields):
    return Problem.dense(m, n, k, **FIELDS[what] | fields)


def config(block_m=128, block_n=128, block_k=64, num_stages=4, num_warps=8, order="groups/row-major", **fields):
    return Config("grouped", block_m, block_n, block_k, num_stages, num_warps, order=orders.parse(order), **fields)


@pytest.mark.parametrize(
    ("asked", "one", "said"),
    [
        (problem(), config(), ""),
        (problem(layout="nn"), config(256, 128), ""),
        (problem("k"), config(128, 256, num_stages=3), ""),
        (problem("rows of fp8"), config(256, 128, 128), ""),
        (problem("rows of exact fp8"), config(64, 256, 128), ""),
        (problem(k=72), config(), ""),
        (problem("k", k=77), config(), ""),
        (problem("k", m=8, k=1), config(), ""),
        (problem(m=0), config(), ""),
        (problem(m=3), config(256, 128), ""),
        (Problem.dense(64, 64, 64), config(), "multiplies groups only"),
        (problem(dtype="fp32"), config(), "dtypes are fp32 and fp32"),
        (problem(layout="tt"), config(), "layout is tt of bf16; where groups divide m, .* nt and nn of bf16 and fp16"),
        (problem("rows of fp8", layout="nn"), config(block_k=128), "layout is nn of fp8e4m3"),
        (problem("k", layout="nt"), config(), "layout is nt of bf16; where groups divide k, .* tn of bf16 and fp16"),
        (problem("k", dtype="int8"), config(block_k=128), "layout is tn of int8"),
        (problem("rows of fp8", scales="1x128*128x128"), config(block_k=128), "scales are '1x128"),
        (problem(n=100), config(), "output is aligned to 8 bytes; TMA stores need 16"),
        (problem(k=100), config(), "a is aligned to 8 bytes"),
        (problem("k", m=100), config(), "a is aligned to 8 bytes"),
        (problem(k=0), config(), "k is 0"),
        (problem("k", k=0), config(), "k is 0"),
        (problem(m=MOST_ROWS + 8), config(), "at most 1073741824"),
        (problem("k", k=MOST_ROWS + 8), config(), "at most 1073741824"),
        (problem(), config(split_k=2), "does not split K"),
        (problem(), config(split_tail=2), "does not split K"),
        (problem(), config(cluster="m"), "has no clusters"),
        (problem(), config(num_warps=4), "num_warps is 4; the 2 consumers of 128 columns have 8"),
        (problem(), config(256, 192), "num_warps is 8; the 3 consumers of 192 columns have 12"),
        (problem(), config(num_stages=1), "num_stages is 1; the pipeline needs at least 2"),
        (problem(), config(32, 128), "blocks are 32x128"),
        (problem(), config(192, 128), "blocks are 192x128"),
        (problem(), config(128, 64), "blocks are 128x64"),
        (problem(), config(256, 256), "blocks are 256x256"),
        (problem(), config(block_k=128), "block_k is 128; lines of 128 bytes have 64 elements of bf16"),
        (problem("rows of fp8"), config(256, 192, 128, 3, 12), "192 columns leave no registers for scales"),
        (problem("rows of fp8"), config(block_k=64), "block_k is 64; lines of 128 bytes have 128 elements of fp8e4m3"),
        (problem("rows of exact fp8"), config(256, 128, 128), "sums that are added in fp32 need 128 \\* 128"),
        (problem(), config(num_stages=7), "bytes of shared memory exceed"),
        (problem(), config(order="row-major"), "needs one such as groups/"),
        (problem(), config(order="dies:8/row-major"), "does not divide tiles among dies"),
        (problem("k"), config(order="joined-groups/row-major"), "none can be joined"),
        (problem(k=16384, accumulation="invariant"), config(), "grouped sums all in one chain"),
    ],
    ids=str,
)
def test_what_is_legal_and_why_not(asked, one, said):
    found = one.fits(asked, H200)
    assert bool(found) == (not said), found.reason
    assert re.search(said, found.reason)


@pytest.mark.parametrize("name", [name for name in gpus.names() if gpus.spec(name).capability != 90])
def test_other_gpus_are_refused(name):
    assert "needs sm_90" in config().fits(problem(), gpus.spec(name)).reason


@pytest.mark.parametrize("block_m", BLOCK_M)
def test_each_number_of_rows_has_one_width_and_it_is_the_next_that_two_wgmma_can_have(block_m):
    sums = {a + b for a in _powers(block_m) for b in (0, *_powers(block_m))}
    for rows in range(1, block_m + 1):
        (width,) = (width for below, width in widths(block_m) if below < rows <= width)
        boxed = -(-rows // BOX) * BOX
        assert width == min(each for each in sums if each >= boxed), rows
        assert width == boxed or boxed not in sums, rows
    assert [width for _, width in widths(block_m)][-1] == block_m


def _powers(most):
    """Rows that one wgmma of Triton can have, of those in multiples of BOX."""
    return [2**i for i in range(12) if BOX <= 2**i <= most]


@pytest.mark.parametrize("consumers", WIDEST)
@pytest.mark.parametrize("block_m", BLOCK_M)
def test_accumulators_have_the_rows_of_their_tile(block_m, consumers):
    for _, width in widths(block_m):
        found = subtiles(width, consumers)
        assert sum(found) == width
        assert len(found) <= 2
        assert set(found) <= set(_powers(WIDEST[consumers])), width
        assert list(found) == sorted(found, reverse=True), "the second starts at a multiple of its rows"


@pytest.mark.parametrize("block_m", BLOCK_M)
def test_boxes_hold_each_row_once(block_m):
    for count in range(block_m // BOX + 1):
        found = boxes(count)
        assert [row for at, rows in found for row in range(at, at + rows)] == list(range(count * BOX)), count
        assert {rows for _, rows in found} <= {WIDE_BOX, BOX}
        assert all(at % 8 == 0 for at, _ in found), "the swizzle of 128 bytes repeats each 8 rows"
        assert len(found) <= count // (WIDE_BOX // BOX) + WIDE_BOX // BOX - 1


@pytest.mark.parametrize("block_m", BLOCK_M)
def test_no_more_rows_are_loaded_than_are_multiplied(block_m):
    """And at most six boxes of A a step."""
    for rows in range(1, block_m + 1):
        loaded = boxes(-(-rows // BOX))
        assert len(loaded) <= 6
        (width,) = (width for below, width in widths(block_m) if below < rows <= width)
        assert rows <= sum(count for _, count in loaded) <= width


@pytest.mark.parametrize("out_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("blocks", [(256, 128), (128, 256), (256, 192), (128, 128), (64, 256), (64, 128)], ids=str)
def test_shared_memory_is_counted(blocks, out_dtype):
    """Of all stages, and of the output what room they leave: two pieces for each consumer, or more."""
    asked = problem(out_dtype=out_dtype)
    block_m, block_n = blocks
    step = (block_m + block_n) * 64 * 2
    piece = PIECE * block_n * (4 if out_dtype == "fp32" else 2)
    for stages in range(2, 12):
        one = config(*blocks, num_stages=stages, num_warps=4 * CONSUMERS[block_n])
        buffers, counted = out_buffers(one, asked), one.shared_bytes(asked, H200)
        assert 2 <= buffers <= block_m // PIECE
        assert (block_m // PIECE) % buffers == 0
        assert counted >= stages * step + buffers * piece
        assert bool(one.fits(asked, H200)) == (counted <= H200.shared_bytes)
        if buffers < block_m // PIECE:  # twice as many do not fit
            assert counted + buffers * piece > H200.shared_bytes


@pytest.mark.parametrize("what", FIELDS)
@pytest.mark.parametrize("out_dtype", ["", "fp32"])
def test_some_candidates_are_legal_of_every_kind(what, out_dtype):
    asked = problem(what)
    asked = replace(asked, out_dtype=out_dtype) if out_dtype else asked
    found = list(family("grouped").candidates(asked, H200))
    assert any(one.fits(asked, H200) for one in found)
    assert not list(family("grouped").candidates(Problem.dense(1000, 768, 512, layout="nt"), H200))
