"""Axes of the figures and words on them: lines within their axes, units that fit, one in the singular, "unverified"."""

import pandas as pd
import pytest
from swept import ABOUT, lines, texts, trial

from tritonmm.orders import RowMajor
from tritonmm.plots import comparison, factors, rows, style, visit


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    """Two M, three single factors and two other orders."""
    every = ("row-major", "hilbert", *(f"swizzle-merge:{factor}" for factor in (2, 3, 8)))
    return pd.DataFrame([trial(m, order, 128) for m in (1000, 2048) for order in every])


def test_no_line_lies_on_the_edge_of_its_axes(results):
    """Two products of unlike speed, each the same with every factor: their lines were cut in half."""
    flat = results.assign(torch_us=float("nan"))
    flat = flat.assign(tflops=flat.m.map({1000: 10.0, 2048: 400.0}))
    for frame in (flat, flat[flat.m == 1000]):
        for axes in factors.figure(frame, ABOUT).axes:
            low, high = axes.get_ylim()
            for name in {"measured", "predicted"} & set(lines(axes)):
                y = lines(axes)[name].get_ydata()
                if axes.get_ylim() == (0, 1):  # rates reach their limits
                    assert not lines(axes)[name].get_clip_on()
                else:
                    assert min(y) - low > 0.02 * (high - low)
                    assert high - max(y) > 0.02 * (high - low)


@pytest.mark.parametrize(
    ("largest", "unit", "size"),
    [(12e9, "GB", 1e9), (1e9, "GB", 1e9), (1.5e6, "MB", 1e6), (90_000, "kB", 1e3), (4, "kB", 1e3)],
)
def test_bytes_have_a_unit_of_which_there_is_one(largest, unit, size):
    assert style.byte_unit(largest) == (unit, size)


def test_axes_of_bytes_name_their_unit(results):
    labels = [axes.get_ylabel() for axes in factors.figure(results, ABOUT).axes[::2]]
    assert labels == ["L2 hit rate", "DRAM reads (MB)", "L2 reads (MB)", "TFLOP/s"]


def test_one_is_singular(results):
    one = results[~results.order.isin(["swizzle-merge:2", "swizzle-merge:3"])]
    assert "the one single factor of swizzle-merge" in texts(comparison.figure(one, ABOUT))
    assert "the fastest of 3 single factors" in texts(comparison.figure(results, ABOUT))


@pytest.mark.parametrize(
    ("gpu", "said"), [("NVIDIA H200", False), ("NVIDIA H100 80GB HBM3", False), ("NVIDIA A100-SXM4-80GB", True)]
)
def test_predictions_for_other_gpus_are_unverified(gpu, said, results):
    about = ABOUT | {"gpu": gpu}
    for frame in (results, results.assign(source="model")):
        assert ("unverified" in texts(factors.figure(frame, about))) == said
        sheet = comparison.figure(frame, about)
        assert ("unverified" in sheet.axes[1].get_xlabel()) == said
    assert ("unverified" in rows.caption(results.assign(source="model"), about)[0]) == said
    assert "unverified" not in rows.caption(results, about)[0]


@pytest.mark.parametrize("name", ["foo.pdf", "foo.jpg", "foo.EPS"])
def test_other_formats_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"figures are written as PNG and SVG; name it .*foo\.png"):
        visit.draw([RowMajor()], 2, 2, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
