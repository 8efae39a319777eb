"""Which rows and columns the Hopper and mixed-input kernels ask for: the boxes of ragged tiles, and what stages expect.

Plans are made and read here, nothing is launched.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.families.hopper.rules import HAS_CLUSTERS
from tritonmm.families.mixed_input import model as streams
from tritonmm.families.mixed_input import rules as weights
from tritonmm.plan import bind
from tritonmm.problem import Epilogue, Problem


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setattr("tritonmm.plan.INTERPRETED", False)  # else there are no plans of these kernels


def plan_of(problem, config):
    return bind(problem, config, gpus.spec("h200"), torch.device("meta"))


def rows_loaded(tiling, m, tile):
    """What is asked of A for a tile from row `tile` on, as hopper/ragged.py says: consumers, first rows, rows.

    Not for tiles that have equal shares.
    """
    assert not tiling.equal_tiles
    for consumer in range(tiling.consumers_m):
        row = tile + consumer * tiling.rows
        left = m - row
        if tiling.last_box_rows:
            if left >= tiling.rows:
                yield consumer, row, tiling.rows
            elif left > 0:
                boxes = tiling.tile_rows // tiling.box_rows
                assert tiling.tile_rows in (0, boxes * tiling.box_rows + tiling.last_box_rows)
                for box in range(boxes):
                    yield consumer, row + box * tiling.box_rows, tiling.box_rows
                yield consumer, row + boxes * tiling.box_rows, tiling.last_box_rows
        elif not tiling.box_rows or (left > 0 and not tiling.boxes):
            shifts = tiling.shifts and row > 0 and left < tiling.rows
            yield consumer, m - tiling.rows if shifts else row, tiling.rows
        elif left > tiling.rows - tiling.box_rows:
            yield consumer, row, tiling.rows
        else:
            for box in range(0, max(left, 0), tiling.box_rows):
                yield consumer, row + box, tiling.box_rows


@pytest.mark.parametrize(
    ("m", "blocks", "epilogue", "split_tail", "beyond"),
    [  # beyond: rows outside of the matrix that are asked for
        (1, (64, 64, 64, 8, 4), Epilogue(), 1, 7),
        (33, (64, 64, 128, 6, 4), Epilogue(), 1, 7),
        (88, (128, 64, 64, 8, 4), Epilogue(), 1, 8),
        (100, (128, 64, 64, 8, 4), Epilogue(), 1, 4),
        (100, (128, 64, 128, 4, 4), Epilogue(c=True), 1, 4),
        (100, (64, 128, 64, 8, 4), Epilogue(), 1, 0),
        (129, (192, 64, 64, 6, 12), Epilogue(), 1, 7),
        (185, (192, 64, 64, 6, 12), Epilogue(), 1, 0),
        (185, (192, 64, 64, 6, 12), Epilogue(c=True), 1, 7),
        (257, (192, 64, 64, 6, 12), Epilogue(), 1, 7),
        (320, (192, 64, 64, 6, 12), Epilogue(c=True), 1, 0),
        (257, (128, 128, 64, 6, 8), Epilogue(), 2, 7),
        (1000, (128, 256, 64, 4, 8), Epilogue(), 1, 24),
        (1025, (128, 256, 64, 4, 8), Epilogue(), 1, 31),
        (513, (128, 256, 64, 4, 8), Epilogue(), 1, 31),
        (385, (128, 256, 64, 4, 8), Epilogue(), 1, 7),
    ],
)
def test_ragged_tiles_ask_for_the_rows_that_are_there_and_few_others(m, blocks, epilogue, split_tail, beyond):
    problem = Problem(m, 4096, 4096, layout="nt", epilogue=epilogue)
    plan = plan_of(problem, Config("hopper", *blocks, split_tail=split_tail, persistent=True))
    tiling = plan.tiling
    asked = [x for tile in range(0, m, tiling.block_m) for x in rows_loaded(tiling, m, tile)]
    assert set(range(m)) <= {row for _, first, rows in asked for row in range(first, first + rows)}
    assert sum(max(first + rows - m, 0) for _, first, rows in asked) == beyond
    assert min(first for _, first, _ in asked) == 0


@pytest.mark.parametrize("blocks", [(64, 64, 128, 6, 4), (64, 128, 64, 8, 8), (128, 64, 64, 8, 4)])
def test_tiles_that_are_multiplied_at_once_have_equal_shares_of_the_rows(blocks):
    config = Config("hopper", *blocks, persistent=True)
    shared = 0
    for m in range(blocks[0] + 1, 4 * blocks[0] + 1):
        tiling = plan_of(Problem(m, 1024, 4096, layout="nt"), config).tiling
        if tiling.equal_tiles:
            shared += 1
            rows = tiling.tile_rows
            assert rows == rows // tiling.box_rows * tiling.box_rows + tiling.last_box_rows < tiling.block_m
            firsts = [min(i * rows, m - rows) for i in range(-(-m // tiling.block_m))]
            assert firsts[0] == 0
            assert firsts[-1] == m - rows
            assert all(before < first <= before + rows for before, first in itertools.pairwise(firsts))
            assert tiling.stage_bytes == 2 * config.block_k * (tiling.block_m + tiling.block_n)
            assert tiling.store == "rows"
    assert shared >= 3 * blocks[0] // 4


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(129, 1024, 512, layout="nt", epilogue=Epilogue(c=True)), {}),  # C may be the output
        (Problem(129, 8200, 512, layout="nt"), {}),  # programs with several tiles
        (Problem(256, 1024, 512, layout="nt"), {}),
        (Problem(250, 1024, 512, layout="nt"), {}),
        (Problem(100, 1024, 512, layout="nt"), {}),
        (Problem(129, 1024, 512, layout="tn"), {}),
        (Problem(129, 1024, 512, layout="nt"), {"num_warps": 8}),
        (Problem(129, 1024, 512, layout="nt"), {"num_warps": 8, "block_k": 128, "num_stages": 4}),
        (Problem(72, 1024, 512, layout="nt", dtype="fp8e4m3", scales="128x128*1x128"), {"block_m": 64, "block_k": 128}),
        (Problem(129, 1024, 512, layout="nt"), {"order": orders.SplitMerge(8)}),
    ],
    ids=str,
)
def test_where_tiles_have_no_equal_shares(problem, config):
    chosen = replace(Config("hopper", 128, 64, 64, 8, 4, persistent=True), **config)
    assert not plan_of(problem, chosen).tiling.equal_tiles


@pytest.mark.parametrize(
    ("block_m", "block_n", "warps", "cluster"),
    [(128, 256, 8, ""), (192, 128, 12, ""), (64, 192, 4, "")]
    + HAS_CLUSTERS * [(256, 256, 8, "m"), (256, 256, 8, "n"), (384, 128, 12, "n"), (128, 384, 12, "n")],
)
def test_a_stage_expects_the_bytes_that_its_buffers_hold(block_m, block_n, warps, cluster):
    config = Config("hopper", block_m, block_n, 64, 3, warps, persistent=True, cluster=cluster)
    problem = Problem(4096, 4096, 4096, layout="nt")
    tiling = plan_of(problem, config).tiling
    a = tiling.consumers_m * math.prod(tiling.a_block) // tiling.ctas_m
    b = tiling.consumers_n * sum(map(math.prod, tiling.b_blocks)) // tiling.ctas_n
    assert tiling.stage_bytes == 2 * (a + b)
    assert sum(tiling.n_subtiles) == tiling.cols
    assert tiling.cta_cols % tiling.cta_piece_cols == 0


def test_tiles_of_weights_hold_few_more_activations_than_there_are():
    for m in range(1, 257):
        block_m = min(rows for rows in weights.LEGAL_BLOCK_M if rows >= m)
        assert block_m < max(4 * m / 3, m + 8)
        problem = Problem.dense(m, 4096, 4096, layout="nt", b_dtype="int8", scales="row")
        spec = plan_of(problem, Config("mixed_input", block_m, 128, 128, 2, 8, persistent=True)).spec
        assert sum(spec.subtiles) == block_m
        assert all(subtile.bit_count() == 1 for subtile in spec.subtiles)
        assert spec.stage_bytes == (128 + 2 * block_m) * 128
        assert block_m in {config.block_m for config in streams.candidates(problem, gpus.spec("h200"))}
