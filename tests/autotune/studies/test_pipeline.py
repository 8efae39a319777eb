"""The study of pipelines: its variants, its file and its figure; on a GPU, that every way to write a tile is right."""

import dataclasses
import itertools

import pytest
import torch
from click.testing import CliRunner

from tritonmm import gpu as gpus
from tritonmm.autotune.measuring import space, verify
from tritonmm.autotune.studies import csv_rows as study
from tritonmm.autotune.studies import pipeline
from tritonmm.config import Config
from tritonmm.plots import pipeline as plot
from tritonmm.plots.rows import read_csv


def rows():
    """A made-up measurement of every variant, 100 TFLOP/s and more with each stage."""
    for shape in pipeline.SHAPES:
        problem = space.problem(*shape, layout="nn")
        for name, config, store in pipeline.variants():
            row = pipeline.Row(name, *shape, config.block_k, config.num_stages, store)
            fit = config.fits(problem, gpus.spec("h200"))
            if not fit:
                yield dataclasses.replace(row, status="illegal", message=fit.reason)
                continue
            tflops = 100 + 50 * config.num_stages
            us = problem.flops / tflops / 1e6
            yield dataclasses.replace(row, time_us=us, torch_us=us / 2, ratio=0.5, tflops=tflops)


def test_variants_cover_stages_depths_and_epilogues():
    by_study = {name: [] for name in ("tile", "hopper", "epilogue")}
    for row in rows():
        by_study[row.study].append(row)
    assert {row.store for row in by_study["epilogue"]} == set(pipeline.STORES)
    tried = {(row.block_k, row.num_stages) for row in by_study["tile"]}
    assert tried == set(itertools.product((32, 64, 128), range(1, 7)))
    legal = {(row.block_k, row.num_stages) for row in by_study["hopper"] if row.status == "ok"}
    assert {(64, 2), (64, 3), (64, 4), (128, 2)} <= legal
    assert all(row.message for found in by_study.values() for row in found if row.status == "illegal")


def test_the_file_is_read_back_and_drawn(tmp_path):
    found = list(rows())
    study.write_csv(tmp_path / "pipeline.csv", found, ["# gpu: NVIDIA H200", "# regime: burst"])
    frame, about = read_csv(tmp_path / "pipeline.csv")
    assert about["gpu"] == "NVIDIA H200"
    figure = plot.figure(frame, about)
    lines = [line for line in figure.axes[0].get_lines() if line.get_label().startswith("block_k")]
    assert {line.get_label() for line in lines} == {"block_k 32", "block_k 64", "block_k 128"}
    assert [bar.get_height() for bar in figure.axes[2].patches] == [300.0] * 3
    assert all(path.stat().st_size for path in plot.draw(frame, about, tmp_path / "figure"))


def test_other_files_are_refused(tmp_path):
    study.write_csv(tmp_path / "pipeline.csv", [dataclasses.replace(row, tflops=None) for row in rows()], [])
    frame, about = read_csv(tmp_path / "pipeline.csv")
    with pytest.raises(ValueError, match="no times"):
        plot.figure(frame, about)
    with pytest.raises(ValueError, match="no study"):
        plot.figure(frame.drop(columns="study"), about)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    result = CliRunner().invoke(pipeline.main, [])
    assert result.exit_code == 1
    assert "needs a GPU" in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("store", pipeline.STORES)
@pytest.mark.parametrize("shape", [(300, 520, 200), (128, 256, 64), (1, 8, 8)])
def test_every_way_to_write_a_tile(shape, store, device):
    gpu = gpus.of_device(device.index)
    config = Config("hopper", 128, 256, 64, 3, 8, persistent=True)
    problem = space.problem(*shape)
    fit = config.fits(problem, gpu)
    if not fit:
        pytest.skip(fit.reason)
    plan = pipeline.plan_of(problem, config, store, gpu, device)
    assert verify.Check(problem, device).error_ratio(plan) <= 1
