"""Packed int8 weights."""

import pytest
import torch

import tritonmm
from tritonmm import gpu as gpus
from tritonmm.dtypes import any_name, short_name
from tritonmm.nn import int8
from tritonmm.nn.linear import WeightOnlyLinear
from tritonmm.nn.weights import dequantized, quantized
from tritonmm.problem import KINDS, Problem
from tritonmm.selection import choose
from tritonmm.torch_ops.quantized import packed_words


@pytest.mark.parametrize("shape", [(3, 64), (5, 40), (1, 1), (2, 7, 33), (0, 16), (4, 0)], ids=str)
def test_unpacked_weights_are_those_that_were_packed(shape):
    weight = torch.randint(-128, 128, shape, dtype=torch.int8)
    packed = int8.pack(weight)
    assert packed.dtype == torch.int8
    assert packed.shape == (*shape[:-1], -(-shape[-1] // 16), 16)
    assert torch.equal(int8.unpack(packed, shape[-1]), weight)


def test_a_thread_finds_its_weights_side_by_side():
    """Of each 16 elements of K, thread c of four multiplies 2 c, 2 c + 1, 2 c + 8 and 2 c + 9."""
    found = int8.pack(torch.arange(32, dtype=torch.int8).view(1, 32)).view(torch.uint8).int() - 128
    of_thread = [[2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9] for c in range(4)]
    assert found.view(2, 4, 4).tolist() == [of_thread, [[k + 16 for k in each] for each in of_thread]]


def test_what_fills_a_row_counts_as_zero():
    assert int8.unpack(int8.pack(torch.ones(2, 5, dtype=torch.int8)))[:, 5:].eq(0).all()


def test_other_weights_are_refused():
    with pytest.raises(TypeError, match=r"weights are torch\.uint8; they must be torch\.int8"):
        int8.pack(torch.zeros(2, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"weights are \[16\]; they must be \(\.\.\., n, k\)"):
        int8.pack(torch.zeros(16, dtype=torch.int8))
    with pytest.raises(TypeError, match=r"weights are torch\.int16; packed ones are torch\.int8"):
        int8.unpack(torch.zeros(2, 1, 16, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"weights are \[2, 3, 8\]; packed ones are"):
        int8.unpack(torch.zeros(2, 3, 8, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"k is 49; weights \[2, 3, 16\] have 0 to 48 elements"):
        int8.unpack(torch.zeros(2, 3, 16, dtype=torch.int8), 49)


@pytest.mark.parametrize("group", [None, 32])
def test_codes_and_scales_are_those_of_int8(group):
    weight = torch.randn(6, 96)
    plain, packed = quantized(weight, "int8", group), quantized(weight, "int8p", group)
    assert torch.equal(int8.pack(plain[0]), packed[0])
    assert torch.equal(dequantized(*plain, torch.float32), dequantized(*packed, torch.float32))


@pytest.mark.parametrize("assign", [False, True])
def test_files_in_which_weights_are_not_packed_can_be_loaded(assign, device):
    codes, scale = quantized(torch.randn(24, 80, device=device), "int8")
    plain = WeightOnlyLinear(codes, scale)
    layer = torch.nn.Linear(80, 24, bias=False).to(device, torch.bfloat16)
    packed = tritonmm.quantize_(torch.nn.Sequential(layer), "int8")
    state = {f"0.{name}": x for name, x in plain.state_dict().items()}
    packed.load_state_dict(state, assign=assign)
    assert packed[0].weight.shape == (24, 5, 16)
    assert state["0.weight"].shape == (24, 80)  # the caller's is unchanged
    x = torch.randn(5, 80, device=device).bfloat16()
    assert torch.equal(packed(x), plain(x))


@pytest.mark.parametrize(("m", "k"), [(1, 80), (7, 72), (40, 33)])
def test_tile_products_have_the_bits_of_int8(m, k, device):
    weight = torch.randint(-128, 128, (50, k), dtype=torch.int8, device=device)
    scale = torch.rand(50, device=device)
    x = torch.randn(m, k, device=device).bfloat16()
    config = tritonmm.Config("tile", 16, 16, 32, 2, 1)
    expected = tritonmm.weight_only_linear(x, weight, scale, config=config)
    assert torch.equal(tritonmm.weight_only_linear(x, int8.pack(weight), scale, config=config), expected)


@pytest.mark.parametrize("name", gpus.names())
@pytest.mark.parametrize("kind", ["bf16-int8p", "bf16-int8p-row"])
def test_every_gpu_has_a_config(kind, name):
    gpu = gpus.spec(name)
    for m in (1, 8, 70, 300, 3000):
        for n, k in ((1, 128), (768, 512), (1001, 4096)):
            problem = Problem.dense(m, n, k, layout="nt", **KINDS[kind])
            assert choose(problem, gpu).fits(problem, gpu)
            assert choose(problem, gpu, "tile").fits(problem, gpu)


def test_rows_that_are_not_contiguous_are_refused(device):
    packed = int8.pack(torch.ones(16, 32, dtype=torch.int8, device=device)).permute(1, 2, 0).contiguous().movedim(2, 0)
    with pytest.raises(RuntimeError, match=r"strides \[1, 256, 16\]; its rows must be contiguous, as weight"):
        tritonmm.weight_only_linear(torch.ones(2, 32, device=device).bfloat16(), packed, torch.ones(16, device=device))


def test_weights_of_other_dtypes_and_sizes_are_refused(device):
    x, scale = torch.ones(2, 40, device=device).bfloat16(), torch.ones(16, device=device)
    packed = int8.pack(torch.ones(16, 40, dtype=torch.int8, device=device))
    with pytest.raises(
        RuntimeError, match=r"weight int8, fp8 or uint8 .*, but they are torch\.bfloat16 and torch\.int16"
    ):
        tritonmm.weight_only_linear(x, packed_words(packed), scale)
    with pytest.raises(RuntimeError, match=r"is packed int8 with room for 48 elements of K; input 2x32 has 32 columns"):
        tritonmm.weight_only_linear(x[:, :32], packed, scale)
    with pytest.raises(RuntimeError, match="weight must be 2-D, but it is 3-D"):
        tritonmm.weight_only_linear(x, packed[..., :8], scale)


def test_torch_sees_int8(device):
    """Code that asks whether a weight is int8, as transformers' T5 does, and collectives, which know no int16."""
    layer = tritonmm.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)).to(device).bfloat16(), "int8")[0]
    assert layer.weight.dtype == torch.int8
    assert layer.weight.is_contiguous()


def test_int16_is_not_the_name_of_packed_int8():
    assert short_name(torch.int16) == "torch.int16"
    with pytest.raises(NotImplementedError, match=r"and packed weights; got torch\.int64"):
        any_name(torch.int64)
