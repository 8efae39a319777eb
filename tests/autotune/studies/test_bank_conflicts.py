"""The transpose moves every element, and goes through shared memory without conflicts unless it is plain."""

import itertools

import pytest
import torch

from tritonmm.autotune.studies.bank_conflicts.launch import LAYOUTS, TransposeTile, tile_for, transpose

SIZES = [(m, n) for m in range(1, 65) for n in range(1, 65)]
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def every_tile():
    for elem_bytes in (1, 2, 4):
        vectors = [vector for vector in (1, 2, 4, 8, 16) if vector * elem_bytes <= 16]
        yield from itertools.product([elem_bytes], vectors, vectors)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predicted_conflicts(layout):
    """Padded and swizzled tiles have none, for any element and vectors; a plain one is read 8-way or worse."""
    for parts in every_tile():
        tile = TransposeTile(layout, *parts)
        writes, reads = tile.conflicts()
        assert {way for each in writes for way in each.ways} == {1}, tile
        found = {way for each in reads for way in each.ways}
        assert found == ({tile.phases} if layout == "plain" else {1}), tile
        assert tile.phases in (8, 16, 32)


def test_reads_are_whole_words_of_every_element_once():
    for parts in every_tile():
        tile = TransposeTile("swizzled", *parts)
        rows, cols = tile.shape
        _, reads = tile.conflicts()
        assert len(reads) * 32 * 4 == rows * cols * tile.elem_bytes, tile


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tile_fits_beside_others_and_its_offsets_are_distinct(layout):
    for parts in every_tile():
        tile = TransposeTile(layout, *parts)
        offsets = tile.shared.offsets()
        assert len(set(offsets.ravel().tolist())) == offsets.size
        assert tile.shared.cosize * tile.elem_bytes <= 20_000
        assert 4 <= tile.num_warps <= 16


def test_vectors_are_as_wide_as_length_stride_and_address_allow():
    def vectors(x, out):
        tile = tile_for(x, out, "swizzled")
        return tile.load_vector, tile.store_vector

    def empty(rows, cols, dtype=torch.float32):
        return torch.empty(rows, cols, dtype=dtype)

    assert vectors(empty(64, 128), empty(128, 64)) == (4, 4)
    assert vectors(empty(63, 128), empty(128, 63)) == (4, 1)
    assert vectors(empty(66, 127), empty(127, 66)) == (1, 2)
    assert vectors(empty(64, 128, torch.int8), empty(128, 64, torch.int8)) == (16, 16)
    assert vectors(empty(64, 128)[:, 1:65], empty(64, 64)) == (1, 4)
    assert vectors(empty(64, 132)[:, :64], empty(64, 64)) == (4, 4)
    assert vectors(empty(64, 130)[:, :64], empty(64, 64)) == (2, 4)
    assert vectors(empty(128, 64).T, empty(64, 128)) == (1, 4)


def test_unknown_layouts_and_sizes_are_refused():
    with pytest.raises(ValueError, match="layout is 'twisted'; it must be one of plain, padded, swizzled"):
        TransposeTile("twisted", 4, 4, 4)
    with pytest.raises(NotImplementedError, match="elements have 8 bytes"):
        TransposeTile("plain", 8, 2, 2)


def test_tensors_that_are_no_matrices_on_a_gpu_are_refused():
    with pytest.raises(RuntimeError, match="must be a matrix on a GPU; it has 2 dimensions and is on cpu"):
        transpose(torch.zeros(3, 4))


def poisoned(sizes, dtype, device):
    """Room for an output [n, m] of each size at an aligned address, with a gap after each, all -1."""
    step = 16 // dtype.itemsize
    starts, total = [], 0
    for m, n in sizes:
        starts.append(total)
        total += -(-(m * n + 1) // step) * step
    return torch.full((total,), -1, dtype=dtype, device=device), starts


def elements(count, dtype, device):
    """No two neighbours alike, none -1."""
    return (torch.arange(count, device=device) % 113).to(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_size_up_to_64_x_64_is_exact(layout, dtype, device):
    x = elements(64 * 64, dtype, device)
    found, starts = poisoned(SIZES, dtype, device)
    expected = found.clone()
    for (m, n), start in zip(SIZES, starts, strict=True):
        span = slice(start, start + m * n)
        transpose(x[: m * n].view(m, n), layout=layout, out=found[span].view(n, m))
        expected[span].view(n, m).copy_(x[: m * n].view(m, n).T)
    wrong = (found != expected).nonzero()
    if len(wrong):
        at = int(wrong[0])
        i = max(i for i, start in enumerate(starts) if start <= at)
        pytest.fail(f"{SIZES[i]}: element {at - starts[i]} is {found[at]}, not {expected[at]}")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float16, torch.int16, torch.int32, torch.float32],
    ids=str,
)
def test_edges_of_tiles(dtype, layout, device):
    for m, n in itertools.product((1, 63, 127, 128, 129, 300), (8, 16, 65, 127, 128, 520)):
        x = torch.randint(0, 100, (m, n), device=device, dtype=torch.uint8).to(dtype)
        assert torch.equal(transpose(x, layout=layout).float(), x.T.float()), (m, n)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_every_kind(layout, device):
    board = torch.randn(300, 400, device=device)
    for name, x in {
        "cut out": board[3:203, 8:264],
        "misaligned": board[3:203, 7:263],
        "every other row": board[::2, :96],
        "every other column": board[:96, ::2],
        "transposed": board.T[:200, :128],
        "one row": board[5:6],
        "one column": board[:, 5:6],
        "broadcast": board[0].expand(200, 400),
        "conjugate's imaginary part": torch.view_as_complex(board.view(300, 200, 2)).conj().imag,
        "empty": board[:0],
    }.items():
        assert torch.equal(transpose(x, layout=layout), x.T), name


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_views_are_written_and_their_surroundings_are_not(layout, device):
    x = torch.randn(200, 120, device=device)
    for make in (
        lambda board: board[5:125, 8:208],
        lambda board: board[5:125, 7:207],
        lambda board: board[4:244:2, 8:208],
        lambda board: board[5:125, 4:404:2],
        lambda board: board.T[8:128, 5:205],
    ):
        board = torch.full((300, 410), float("nan"), device=device)
        out = make(board)
        assert transpose(x, layout=layout, out=out) is out
        assert torch.equal(out, x.T)
        assert board.isnan().sum() == board.numel() - out.numel()


@pytest.mark.gpu
def test_rows_more_than_2_gib_apart(device):
    """A tile's own offsets then need 64 bits."""
    gap = 2**30
    memory = torch.zeros(3 * gap, dtype=torch.int8, device=device)
    x = memory.as_strided((3, 200), (gap + 64, 1))
    x.copy_(elements(600, torch.int8, device).view(3, 200))
    assert torch.equal(transpose(x), x.T)
    out = memory.as_strided((3, 200), (gap + 64, 1), 1024)
    y = elements(600, torch.int8, device).view(200, 3)
    transpose(y, out=out)
    assert torch.equal(out, y.T)


@pytest.mark.gpu
def test_a_square_onto_itself(device):
    x = torch.randn(200, 200, device=device)
    expected = x.T.clone()
    assert torch.equal(transpose(x, out=x), expected)


@pytest.mark.gpu
def test_what_does_not_fit_is_refused(device):
    x = torch.randn(8, 16, device=device)
    with pytest.raises(RuntimeError, match=r"out must be 16x8 of torch\.float32"):
        transpose(x, out=torch.empty(8, 16, device=device))
    with pytest.raises(RuntimeError, match="share one memory location"):
        transpose(x, out=torch.empty(1, 8, device=device).expand(16, 8))
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        transpose(x.requires_grad_())
    with pytest.raises(NotImplementedError, match="elements have 8 bytes"):
        transpose(x.detach().double())
