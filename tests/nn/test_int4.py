"""Packed 4-bit weights: each element has its place, nothing is lost, and what cannot be packed is refused."""

import re

import pytest
import torch

from tritonmm.nn.int4 import pack, unpack


def place(k):
    """The byte of element k of a row, and whether it is the high nibble, by the bits of k."""
    bit = [k >> i & 1 for i in range(5)]
    return k // 32 * 16 + 4 * (k % 8 // 2) + 2 * bit[0] + bit[4], bit[3]


@pytest.mark.parametrize("k", [1, 31, 32, 72, 256])
def test_every_element_has_its_place(k):
    codes = torch.randint(16, (3, k))
    packed = pack(codes)
    assert (packed.shape, packed.dtype) == ((3, -(-k // 32) * 16), torch.uint8)
    for i in range(k):
        byte, high = place(i)
        assert torch.equal((packed[:, byte] >> 4 * high & 15).long(), codes[:, i]), i
    filled = pack(torch.nn.functional.pad(codes, (0, -k % 32), value=8))
    assert torch.equal(packed, filled), "rows are not filled up with the code of 0"


def test_a_thread_of_wgmma_finds_its_elements_in_one_word():
    """Of every 16 elements, thread c of four multiplies 2 c, 2 c + 1, 2 c + 8 and 2 c + 9; pairs lie 16 bits apart."""
    words = pack(torch.arange(64)[None] % 16).view(torch.int32).long()[0] & 0xFFFFFFFF
    second = pack(torch.arange(64)[None] // 16).view(torch.int32).long()[0] & 0xFFFFFFFF
    for at in range(8):
        block, c = divmod(at, 4)
        expected = [32 * block + 16 * step + 8 * half + 2 * c for step in (0, 1) for half in (0, 1)]
        for nibble, k in enumerate(expected):
            for neighbour in (0, 1):
                shift = 4 * nibble + 16 * neighbour
                assert (words[at] >> shift & 15) + 16 * (second[at] >> shift & 15) == k + neighbour


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_nothing_is_lost(dtype):
    codes = torch.randint(16, (7, 104), dtype=dtype)
    packed = pack(codes)
    assert torch.equal(unpack(packed, 104), codes.to(torch.uint8))
    assert unpack(packed).shape == (7, 128)
    assert torch.equal(pack(unpack(packed)), packed)
    assert torch.equal(pack(codes.t().contiguous().t()), packed)
    assert pack(codes[:0]).shape == (0, 64)
    assert unpack(pack(codes[:, :0])).shape == (7, 0)
    assert pack(codes.to("meta")).shape == (7, 64)


@pytest.mark.parametrize(
    ("codes", "error", "said"),
    [
        (torch.ones(2, 32), TypeError, "codes are torch.float32; they must be integers"),
        (torch.ones(32, dtype=torch.int8), ValueError, "codes are [32]; they must be (..., n, k)"),
        (torch.full((2, 32), 16), ValueError, "codes are 16 to 16; they must be 0 to 15"),
        (torch.full((2, 32), -8), ValueError, "codes are -8 to -8; they must be 0 to 15"),
    ],
)
def test_what_cannot_be_packed_is_refused(codes, error, said):
    with pytest.raises(error, match=re.escape(said)):
        pack(codes)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64], ids=str)
def test_codes_of_any_integer_dtype(dtype):
    codes = torch.randint(16, (3, 40))
    assert torch.equal(pack(codes.to(dtype)), pack(codes))
    with pytest.raises(ValueError, match="they must be 0 to 15"):
        pack((codes + 16).to(dtype))
