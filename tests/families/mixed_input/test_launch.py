"""How the mixed-input kernel is launched where programs share tiles, or assist others in the last round."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space
from tritonmm.config import Config
from tritonmm.device import split_k
from tritonmm.families.mixed_input import launch
from tritonmm.families.mixed_input.rules import LEGAL_BLOCK_M, shared_work, subtiles
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Epilogue

H200 = gpus.spec("h200")
CONFIG = Config("mixed_input", 256, 128, 64, 5, 8, persistent=True, split_tail=2, order=SwizzleMerge(2))


def product(m=512, n=14336, k=4096, dtype="bf16-int8"):
    return space.problem(m, n, k, dtype=dtype, layout="nt")


def test_programs_that_wait_for_assistants_start_together_and_have_a_place_for_each_tile(monkeypatch):
    """Of 224 tiles 92 are in the last round, for 132 programs."""
    monkeypatch.setattr(launch, "launch_options", lambda device, **options: options)  # asks for a GPU
    plan = families.family("mixed_input").plan(product(), CONFIG, H200, torch.device("meta"))
    assert plan.spec.fixup == "assist"
    a, b, out = (torch.empty(shape, device="meta") for shape in ((512, 4096), (4096, 14336), (512, 14336)))
    scales = None, torch.empty(32, 14336, device="meta")
    _, options = plan.arguments(a.bfloat16(), b.to(torch.int8).t().contiguous().t(), out.bfloat16(), scales=scales)
    assert options["launch_cooperative_grid"]
    sums, flags = plan.workspace()
    assert sums.numel() >= 92 * 256 * 128
    assert flags.numel() >= 224 * 2


@pytest.mark.parametrize(
    ("m", "n", "k", "steps"), [(512, 14336, 4096, 6), (193, 28672, 8192, 14), (2048, 28672, 8192, 20)]
)
def test_assistants_are_done_when_the_others_are(m, n, k, steps):
    """Steps that measured fastest or next to it, of 128 elements of K, on an H200."""
    problem = product(m, n, k)
    assert shared_work(CONFIG, problem, 132, CONFIG.programs(problem)) == (steps, 1)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (replace(product(dtype="bf16-int8-row"), dtype="fp16", out_dtype="fp16"), CONFIG),
        (replace(product(), out_dtype="fp32"), CONFIG),
        (replace(product(), epilogue=Epilogue(scaled=True)), CONFIG),
        (replace(product(dtype="bf16-int8-row"), epilogue=Epilogue(bias=True)), CONFIG),
        (product(dtype="bf16-int4-row"), CONFIG),
        (product(), replace(CONFIG, num_stages=2)),
    ],
)
def test_only_kernels_with_registers_to_add_anothers_sums_are_assisted(problem, config):
    assert CONFIG.fits(product(), H200)
    assert "add another's sums" in config.fits(problem, H200).reason


@pytest.mark.parametrize("owner_is_first", [True, False])
@pytest.mark.parametrize("phase", [0, 1])
def test_flags_of_assisted_tiles_flip_once_both_parts_are_there(monkeypatch, phase, owner_is_first):
    """The device code as Python, on flags of three tiles with two workers each: worker 1 of tiles 0 and 2."""
    flags = [phase << 31] * 6

    def add(at, weight, sem, scope):
        before, flags[at] = flags[at], (flags[at] + weight) % 2**32
        return before

    language = SimpleNamespace(
        atomic_add=add, where=lambda condition, x, y: x if condition else y, debug_barrier=lambda: None,
        inline_asm_elementwise=lambda *_, **__: None, int32=None,
    )  # fmt: skip
    monkeypatch.setattr(split_k, "tl", language)
    monkeypatch.setattr(split_k, "COUNT", split_k.COUNT.value)

    def owners():
        return [split_k.arrive.fn(2 * tile + 1, True, 1, 2)[0] for tile in (0, 2)]

    def assistant():
        split_k.arrive_at_all.fn(1, 0, 3, 2, 2)

    if owner_is_first:
        assert owners() == [False, False]
        assert [flag >> 31 for flag in flags] == [phase] * 6
        assistant()
    else:
        assistant()
        assert [flag >> 31 for flag in flags] == [phase] * 6
        assert owners() == [True, True]
    other = 1 - phase
    assert flags == [phase << 31, other << 31, phase << 31, phase << 31, phase << 31, other << 31]


@pytest.mark.parametrize("kind", ["bf16-int8", "bf16-fp8-row", "bf16-int4"])
def test_pieces_divide_each_subtile_and_every_program_has_one_while_there_are_eight_columns(kind):
    seen = 0
    for rows in LEGAL_BLOCK_M:
        for block_n, warps in ((128, 8), (192, 12), (256, 8)):
            whole = Config("mixed_input", rows, block_n, 128, 2, warps, persistent=True)
            for parts in (0, 2, 3, 4, 5, 8):
                problem = product(2 * rows, 4 * block_n, dtype=kind)
                config = replace(whole, split_k=parts, persistent=False) if parts else whole
                if not config.fits(problem, H200):
                    continue
                plan = families.family("mixed_input").plan(problem, config, H200, torch.device("meta"))
                if plan.spec.fixup not in ("reduce-scatter", "last-arriver"):
                    continue
                seen += 1
                assert plan.spec.parts == parts
                for cols, pieces in zip(subtiles(config), plan.spec.pieces, strict=True):
                    width = cols // pieces
                    assert width * pieces == cols
                    assert width % 8 == 0
                    if parts:
                        assert pieces >= min(parts, cols // 8)
                    else:  # the last arriver has 32 registers for a piece of each of four parts
                        assert width * plan.spec.rows <= 32 * 128
    assert seen > 40
