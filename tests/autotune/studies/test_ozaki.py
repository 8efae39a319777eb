"""The study of exact products: errors are those of the ways that it names."""

import numpy as np
import torch

from tritonmm.autotune.studies import ozaki


def test_errors_are_in_units_of_rounding(device, monkeypatch):
    a, b = torch.ones(70, 96, dtype=torch.float64), torch.ones(96, 80, dtype=torch.float64)

    def off(a, b, out):
        torch.mm(a, b, out=out)
        out[68, 75] += 96 * 2.0**-50

    def unwritten(a, b, out):
        torch.mm(a, b[:, :79], out=out[:, :79])

    monkeypatch.setattr(ozaki, "ERROR_SIDE", 80)
    assert ozaki.error(off, a, b) == 8
    assert np.isnan(ozaki.error(unwritten, a, b))
    assert ozaki.error(ozaki.torch_mm, a.float(), b.float()) == 0


def test_ways_multiply(device):
    torch.manual_seed(0)
    for dtype, most in (
        (torch.float64, {"N=14": 4, "N=15": 1.5, "N=16": 1.5}),
        (torch.float32, {"N=7": 2, "N=8": 1.5}),
    ):
        a, b = torch.randn(20, 200, dtype=dtype, device=device), torch.randn(200, 24, dtype=dtype, device=device)
        ways = dict(ozaki.ways(dtype))
        assert list(ways) == [*most, *ozaki.OTHERS[dtype]]
        for way, bound in most.items():
            assert 0 < ozaki.error(ways[way], a, b) < bound, way
    assert np.finfo(np.longdouble).nmant > 60
