"""ozaki_mm: bits of the exact definition, for any strides, batches, panels and values; errors and addends."""

import itertools

import ozaki_reference as reference
import pytest
import torch

from tritonmm.launch.steps import Steps
from tritonmm.moduli import LONGEST_K, MOST_K
from tritonmm.ozaki import panels, planes
from tritonmm.torch_ops.ozaki import ozaki_mm

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # NumPy's, of infinity and NaN

KINDS = ["normal", "uniform", "spread", "lines", "integers", "sparse"]
FP64, FP32 = torch.float64, torch.float32


def assert_same_bits(found, expected):
    """Equal, with NaN for NaN; the sign of 0 counts. The reference is on the host."""
    found, expected = found.cpu(), expected.cpu()
    as_bits = {torch.float64: torch.int64, torch.float32: torch.int32}[found.dtype]
    same = found.contiguous().view(as_bits) == expected.contiguous().view(as_bits)
    wrong = (~(same | (found.isnan() & expected.isnan()))).nonzero().tolist()
    assert not wrong, f"{len(wrong)} differ; {wrong[0]}: {found[tuple(wrong[0])]!r}, not {expected[tuple(wrong[0])]!r}"


def operand(kind, rows, cols, dtype, device):
    x = torch.randn(rows, cols, dtype=dtype, device=device)
    if kind == "spread":
        x = x * torch.exp2(15 * torch.randn_like(x))
    elif kind == "lines":
        x = x * torch.exp2(torch.randint(-60, 60, (rows, 1), device=device))
    elif kind == "integers":
        x = torch.randint(-1000, 1000, (rows, cols), device=device).to(dtype)
    elif kind == "sparse":
        x = x * (torch.rand_like(x) < 0.1)
        x[0] = 0
    elif kind == "uniform":
        x = torch.rand_like(x)
    return x


@pytest.mark.parametrize(("dtype", "moduli"), [
    *((FP64, moduli) for moduli in (5, 10, 13, 14, 15, 16)), *((FP32, moduli) for moduli in (6, 7, 8, 16)),
])  # fmt: skip
def test_bits_are_those_of_exact_integers(dtype, moduli, device):
    """A batch of a kind each, and a K of more than one chunk."""
    a = torch.stack([operand(kind, 5, 300, dtype, device) for kind in KINDS])
    b = torch.stack([operand(kind, 7, 300, dtype, device) for kind in KINDS]).mT
    found = ozaki_mm(a, b, moduli=moduli)
    for i in range(len(KINDS)):
        assert_same_bits(found[i], reference.product(a[i], b[i], moduli))


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(FP64, -1074, -450), (FP64, 400, 520), (FP32, -149, -40), (FP32, 30, 100)]
)
def test_subnormals_and_infinities_are_rounded_once(dtype, low, high, device):
    for moduli in (8, 9, 15):
        a, b = operand("normal", 24, 30, dtype, device).double(), operand("normal", 24, 30, dtype, device).double()
        by = torch.linspace(low, high, 24, device=device).round().double()
        a, b = torch.exp2(by)[:, None] * a, torch.exp2(by.flip(0))[:, None] * b
        a, b = a.to(dtype), b.to(dtype).mT
        assert_same_bits(ozaki_mm(a, b, moduli=moduli), reference.product(a, b, moduli))


def test_subnormals_halfway_between_two(device):
    """Sums whose last bits are exactly half a unit of the smallest subnormals, and next to that."""
    a = torch.tensor([[1.5, 0.0], [1.5, 2.0**-40], [1.5, -(2.0**-40)], [2.5, 0.0], [0.5, 2.0**-52], [0.5, 0.0]])
    a = a.to(FP64).to(device)
    b = torch.full((2, 1), 2.0**-1074, dtype=FP64, device=device)
    found = ozaki_mm(a, b, moduli=15)
    assert_same_bits(found, reference.product(a, b, 15))
    assert (found.cpu() / 2.0**-1074).ravel().tolist() == [2, 2, 1, 2, 1, 0]


LAYOUTS = ["nn", "nt", "tn", "tt", "ss"]


def stored(x, letter):
    """x, and the same elements in memory as the letter of a layout says."""
    if letter == "s":
        memory = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1] + 1)
        memory[..., 1::2] = x
        return memory[..., 1::2]
    return x.contiguous() if letter == "n" else x.mT.contiguous().mT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "moduli"), [(FP64, 6), (FP32, 5)])
def test_bits_do_not_depend_on_strides_batch_and_shape(layout, dtype, moduli, device):
    a, b = torch.randn(2, 9, 40, dtype=dtype, device=device), torch.randn(2, 40, 13, dtype=dtype, device=device)
    expected = torch.stack([ozaki_mm(x, y, moduli=moduli) for x, y in zip(a, b, strict=True)])
    left, right = stored(a, layout[0]), stored(b, layout[1])
    assert_same_bits(ozaki_mm(left, right, moduli=moduli), expected)
    assert_same_bits(ozaki_mm(left[:, 4:9], right[:, :, 7:], moduli=moduli), expected[:, 4:9, 7:])
    out = stored(torch.zeros_like(expected), layout[0])
    assert ozaki_mm(left, right, moduli=moduli, out=out) is out
    assert_same_bits(out, expected)
    shared = a[:1].expand(2, 9, 40)
    assert_same_bits(ozaki_mm(shared, right, moduli=moduli)[0], expected[0])


@pytest.mark.parametrize(("dtype", "moduli"), [(FP64, 16), (FP32, 9)])
def test_epilogue(dtype, moduli, device):
    a, b = torch.randn(20, 30, dtype=dtype, device=device), torch.randn(30, 25, dtype=dtype, device=device)
    c, bias = torch.randn(20, 25, dtype=dtype, device=device), torch.randn(25, dtype=dtype, device=device)
    tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 32 * torch.finfo(dtype).eps}
    for alpha, beta, added, vector in ((-0.5, 1, None, None), (1, 3, c, None), (2, 0, c, bias), (0.3, 0.7, c[0], bias)):
        found = ozaki_mm(a, b, moduli=moduli, alpha=alpha, beta=beta, c=added, bias=vector)
        expected = alpha * (a.double() @ b.double()) + (0 if vector is None else vector.double())
        expected = expected + (0 if added is None else beta * added.double())
        torch.testing.assert_close(found, expected.to(dtype), **tolerance)
    expected = ozaki_mm(a, b, moduli=moduli, c=c, beta=0.5)
    assert_same_bits(ozaki_mm(a, b, moduli=moduli, c=c, beta=0.5, out=c), expected)


@pytest.mark.parametrize("dtype", [FP64, FP32])
def test_lines_with_infinity_or_nan_are_those_of_ieee_and_others_do_not_change(dtype, device):
    a, b = torch.randn(40, 50, dtype=dtype, device=device), torch.randn(50, 37, dtype=dtype, device=device)
    a[5, 3] = b[7, 9] = 0
    expected = ozaki_mm(a, b, moduli=5)
    infinity, nan = float("inf"), float("nan")
    a[2, 3], a[11, 4], a[12, 5], a[12, 6], a[20, 7] = infinity, nan, infinity, -infinity, -infinity
    b[3, 8], b[9, 30] = 0, nan
    b[3, 31] = infinity
    special = a.double() @ b.double()
    found = ozaki_mm(a, b, moduli=5)
    finite = special.isfinite()
    finite[:, 8] = False  # a finite element of b changed
    assert_same_bits(found[finite], expected[finite])
    others = ~special.isfinite()
    assert others.sum() > 150
    assert_same_bits(found[others], special[others].to(dtype))
    huge = torch.finfo(dtype).max
    a, b = torch.full((2, 3), huge, dtype=dtype), torch.full((3, 2), huge, dtype=dtype)
    a[0, 0] = infinity
    b[:, 1] = -huge
    assert ozaki_mm(a.to(device), b.to(device), moduli=5).tolist() == [[infinity, -infinity]] * 2


def test_panels_cover_each_element_once_and_fit_the_workspace(monkeypatch):
    for (m, n, k), batch, moduli in itertools.product(
        ((8192, 8192, 8192), (16384, 16384, 16384), (1, 100_000, 131_071), (50_000, 3, 8000), (300, 300, 300)),
        (1, 5),
        (7, 16),
    ):
        covered = 0
        for panel in panels.panels(m, n, k, batch, moduli):
            together, rows = panel.batch.stop - panel.batch.start, panel.rows.stop - panel.rows.start
            widths = [columns.stop - columns.start for columns in panel.columns]
            assert [columns.start for columns in panel.columns] == list(itertools.accumulate([0, *widths[:-1]]))
            covered += together * rows * sum(widths)
            width = max(widths)
            planes = together * moduli * ((rows + width) * panels.round_up(k) + rows * panels.round_up(width))
            assert planes <= panels.WORKSPACE or rows <= panels.FEWEST or width <= panels.FEWEST
        assert covered == batch * m * n


def test_panels_do_not_change_bits(monkeypatch, device):
    a, b = torch.randn(2, 40, 20, dtype=FP64, device=device), torch.randn(2, 20, 36, dtype=FP64, device=device)
    c, bias = torch.randn(2, 40, 36, dtype=FP64, device=device), torch.randn(36, dtype=FP64, device=device)
    a[1, 39, 3] = float("inf")
    expected = ozaki_mm(a, b, moduli=5, c=c, bias=bias)
    monkeypatch.setattr(panels, "FEWEST", 16)
    monkeypatch.setattr(panels, "WORKSPACE", 16_000)
    assert len(list(panels.panels(40, 36, 20, 2, 5))) > 1
    assert_same_bits(ozaki_mm(a, b, moduli=5, c=c, bias=bias), expected)


def test_where_scales_are_found_does_not_change_bits(monkeypatch, device):
    """By a kernel of their own, or where residues are."""
    a, b = torch.randn(2, 5, 600, dtype=FP64, device=device), torch.randn(2, 600, 7, dtype=FP64, device=device)
    a[1, 2, 3], b[0, 0, 6], a[0, 4] = float("inf"), float("nan"), 0
    verdict, expected = torch.empty(1, dtype=torch.int32, device=device), ozaki_mm(a, b, moduli=6)
    assert_same_bits(ozaki_mm(a, b, moduli=6, proved=verdict), expected)
    assert verdict.item() == 0
    monkeypatch.setattr(planes, "QUANTIZE", Steps())
    monkeypatch.setattr(planes, "FEW_CHUNKS", 2)
    assert_same_bits(ozaki_mm(a, b, moduli=6), expected)


def test_parts_of_k_do_not_change_bits(monkeypatch, device):
    a, b = torch.randn(2, 5, 600, dtype=FP64, device=device), torch.randn(2, 600, 7, dtype=FP64, device=device)
    a[1, 2, 3] = float("nan")
    expected = ozaki_mm(a, b, moduli=6)
    monkeypatch.setattr(panels, "LONGEST_PART", 256)
    assert panels.parts_of(600) == [slice(0, 256), slice(256, 512), slice(512, 608)]
    assert_same_bits(ozaki_mm(a, b, moduli=6), expected)
    largest = torch.full((1, 600), 1.0, dtype=FP64, device=device)  # residues of one sign, whose sums are the largest
    assert ozaki_mm(largest, largest.mT, moduli=6).item() == 600


def test_every_part_of_k_is_multiplied_once_and_fits_int32():
    for k in (1, 255, 256, 131_056, 131_071, 131_072, 131_073, 262_145, 10**6, LONGEST_K):
        parts = panels.parts_of(k)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == panels.round_up(k)
        assert all(part.start % 16 == 0 and 0 < part.stop - part.start <= MOST_K for part in parts)
        assert len(parts) == -(-panels.round_up(k) // panels.LONGEST_PART)


@pytest.mark.gpu
def test_a_long_k_has_the_bits_of_exact_integers(device):
    a, b = torch.randn(3, 300_001, dtype=FP64, device=device), torch.randn(300_001, 3, dtype=FP64, device=device)
    assert_same_bits(ozaki_mm(a, b, moduli=15).cpu(), reference.product(a.cpu(), b.cpu(), 15))


def test_nothing_to_multiply(device):
    a = torch.randn(4, 0, dtype=FP64, device=device)
    assert ozaki_mm(a, a.mT, moduli=14).tolist() == [[0.0] * 4] * 4
    assert ozaki_mm(a.mT, a, moduli=14).shape == (0, 0)
    assert ozaki_mm(torch.zeros(3, 4, device=device), torch.zeros(4, 3, device=device), moduli=7).eq(0).all()


def test_errors(device):
    a = torch.randn(4, 4, dtype=FP64, device=device)
    for moduli in (4, 17, 14.0, True, "ozaki"):
        with pytest.raises(ValueError, match="moduli is"):
            ozaki_mm(a, a, moduli=moduli)
    with pytest.raises(NotImplementedError, match="bfloat16"):
        ozaki_mm(a.bfloat16(), a.bfloat16(), moduli=14)
    with pytest.raises(RuntimeError, match="same dtype"):
        ozaki_mm(a, a.float(), moduli=14)
    with pytest.raises(RuntimeError, match="inner dimensions differ"):
        ozaki_mm(a, a[:3], moduli=14)
    with pytest.raises(RuntimeError, match="both must be matrices"):
        ozaki_mm(a, a[None], moduli=14)
    long = torch.empty(1, 1, device=device).expand(1, 2**24)
    with pytest.raises(ValueError, match=r"k is 16777216; it is at most 16777215"):
        ozaki_mm(long, long.mT, moduli=14)
    with pytest.raises(RuntimeError, match="bias is 3"):
        ozaki_mm(a, a, moduli=14, bias=a[0, :3])
    with pytest.raises(RuntimeError, match="out is 4x3"):
        ozaki_mm(a, a, moduli=14, out=a[:, :3])
    with pytest.raises(RuntimeError, match="overlaps"):
        ozaki_mm(a, a, moduli=14, out=a)
