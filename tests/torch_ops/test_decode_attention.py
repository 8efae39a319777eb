"""Attention of one new token: within its bound of float64, the same bits in any batch, and no key read outside of
what its sequence sees. On a CPU the kernel is interpreted, and the operator is torch's."""

from fractions import Fraction

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from triton.runtime import interpreter

from tritonmm import gpu as gpus
from tritonmm.launch import decode_attention as launch
from tritonmm.launch import workspace
from tritonmm.launch.interpreter import INTERPRETED
from tritonmm.nn import decode_attention

UNITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

SHAPES = {  # batch, groups, heads of a group, length, dim, value dim
    "one part": (2, 2, 4, 40, 16, 16),
    "two parts": (3, 1, 1, 200, 16, 32),
    "no powers of two": (2, 2, 3, 300, 40, 24),
    "many heads": (2, 1, 20, 130, 32, 16),
    "a key": (2, 2, 2, 1, 16, 16),
    "parts of several blocks": (1, 1, 4, 4200, 16, 16),
}


def made(shape, dtype, device):
    batch, groups, heads, length, dim, value_dim = shape
    query = torch.randn(batch, groups * heads, dim, device=device).to(dtype)
    key = torch.randn(batch, groups, length, dim, device=device).to(dtype)
    return query, key, torch.randn(batch, groups, length, value_dim, device=device).to(dtype)


def by_kernel(query, key, value, mask=None, scale=0.3):
    out = query.new_full((*query.shape[:2], value.shape[3]), torch.nan)
    launch.fill(query, key, value, mask, out, scale)
    return out


def by_operator(query, key, value, mask=None, scale=0.3):
    return decode_attention(query, key, value, mask, scale)


def fault(found, query, key, value, mask=None, scale=0.3):
    """The largest error relative to the bound: the result and the softmax are rounded, sums in fp32 are not."""
    key, value = (x.double().repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    scores = query.double()[:, :, None] @ key.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num()
    unit = UNITS[found.dtype]
    bound = unit * (weights @ value).abs() + 2 * unit * (weights @ value.abs()) + 1e-30
    return ((found.double()[:, :, None] - weights @ value).abs() / bound).max().item()


def prefix(key, *lengths):
    return torch.arange(key.shape[2], device=key.device) < torch.tensor(lengths, device=key.device)[:, None]


def use_programs(programs, pairs, monkeypatch):
    monkeypatch.setattr(launch, "PROGRAMS_OF_SM", Fraction(pairs * programs, gpus.default().sms))


def fill_workspace_with_nan(monkeypatch):
    monkeypatch.setattr(workspace, "sums", lambda count, device: torch.full((count,), torch.nan, device=device))


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_errors_are_within_the_bound(shape, dtype, compute, device):
    operands = made(shape, dtype, device)
    assert fault(compute(*operands), *operands) < 1
    mask = torch.rand(shape[0], shape[3], device=device) < 0.3
    assert fault(compute(*operands, mask), *operands, mask) < 1


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
@pytest.mark.parametrize("seen", [(0, 300), (64, 128), (63, 65), (70, 71), (128, 129), (299, 300), (130, 250)])
def test_what_no_sequence_sees_is_not_read(seen, compute, device):
    """NaN before the first key and after the last one, in blocks of 64 keys and parts of 128."""
    query, key, value = made((2, 1, 4, 300, 16, 16), torch.bfloat16, device)
    first, end = seen
    mask = torch.zeros(2, 300, dtype=torch.bool, device=device)
    mask[:, first:end] = True
    expected = compute(query, key, value, mask)
    for x in (key, value):
        x[:, :, :first] = x[:, :, end:] = torch.nan
    assert torch.equal(compute(query, key, value, mask), expected)
    assert fault(expected, query, key[:, :, first:end], value[:, :, first:end], mask[:, first:end]) < 1


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
def test_a_sequence_that_sees_nothing_gets_0(compute, device):
    operands = made((3, 2, 2, 200, 16, 16), torch.float16, device)
    mask = prefix(operands[1], 200, 0, 3)
    found = compute(*operands, mask)
    assert not found[1].any()
    assert fault(found, *operands, mask) < 1


def test_bits_of_a_sequence_do_not_depend_on_the_others(device):
    query, key, value = made((5, 2, 4, 300, 32, 32), torch.bfloat16, device)
    mask = prefix(key, 300, 20, 131, 128, 0)
    together = by_kernel(query, key, value, mask)
    for i in range(5):
        one = slice(i, i + 1)
        assert torch.equal(by_kernel(query[one], key[one], value[one], mask[one]), together[one])


@pytest.mark.parametrize("programs", [1, 2, 3, 5])
def test_bits_do_not_depend_on_how_many_programs_share_the_parts(programs, device, monkeypatch):
    """7, 6, 2 and no parts that see keys."""
    query, key, value = made((4, 1, 4, 850, 32, 32), torch.bfloat16, device)
    mask = prefix(key, 850, 700, 200, 0)
    expected = by_kernel(query, key, value, mask)
    use_programs(programs, 4, monkeypatch)
    assert launch.arguments(query, key, value, mask, query, 1.0)[1]["programs"] == programs
    assert torch.equal(by_kernel(query, key, value, mask), expected)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU chooses the order itself")
@pytest.mark.parametrize("order", ["last first", "the first last"])
def test_whichever_program_arrives_last_merges(order, device, monkeypatch):
    """The interpreter runs programs in turn. Some have no parts, as 7, 2, 1 and no parts are shared by 3."""
    query, key, value = made((4, 1, 4, 850, 16, 16), torch.bfloat16, device)
    mask = prefix(key, 850, 200, 3, 0)
    use_programs(3, 4, monkeypatch)
    expected = by_kernel(query, key, value, mask)
    fill_workspace_with_nan(monkeypatch)
    builder = interpreter.interpreter_builder
    set_index = builder.set_grid_idx

    def set_other_index(x, y, z):
        count = builder.grid_dim[0]
        set_index((count - 1 - x) if order == "last first" else (x + 4) % count, y, z)

    monkeypatch.setattr(builder, "set_grid_idx", set_other_index)
    assert torch.equal(by_kernel(query, key, value, mask), expected)


def test_a_workspace_of_earlier_launches(device, monkeypatch):
    """Flags of either phase are left without a count, whatever is launched next. NaN in the workspace is not read."""
    flags = torch.zeros(4, dtype=torch.int32, device=device)
    flags[::3] = -(2**31)
    monkeypatch.setattr(workspace, "flags", lambda count, device: flags)
    fill_workspace_with_nan(monkeypatch)
    for length, programs, ends in (
        (850, 3, ((0, 850), (300, 600), (700, 701), (0, 0))),
        (130, 2, ((0, 130), (129, 130))),
    ):
        query, key, value = made((len(ends), 1, 2, length, 16, 16), torch.bfloat16, device)
        mask = torch.zeros(len(ends), length, dtype=torch.bool, device=device)
        for row, (first, after) in zip(mask, ends, strict=True):
            row[first:after] = True
        use_programs(programs, len(ends), monkeypatch)
        for given in (mask, None, mask):
            assert fault(by_kernel(query, key, value, given), query, key, value, given) < 1
            assert not (flags & 0x7FFFFFFF).any()


@pytest.mark.parametrize("length", [1, 128, 129, 4096, 4097, 65536, 65537, 200_000])
def test_parts_hold_the_cache_and_no_more(length, device):
    """Neither a part nor a program is without keys if all are seen. A part does not depend on the batch."""
    bits = set()
    one = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16, device=device)
    for batch in (1, 10_000):
        query, key = one[0].expand(batch, -1, -1), one.expand(batch, -1, length, -1)
        numbers = launch.arguments(query, key, key[..., :1], None, query, 1.0)[1]
        assert (numbers["parts"] - 1) << numbers["part_bits"] < length <= numbers["parts"] << numbers["part_bits"]
        assert 1 <= numbers["programs"] <= numbers["parts"]
        bits.add(numbers["part_bits"])
    assert len(bits) == 1
    assert 128 <= 1 << min(bits) <= 2048


@pytest.mark.parametrize("length", [200, 4096, 4097])
def test_one_hole(length, device):
    """A mask without holes is not read again. From 4097 keys on a kernel of its own counts those that are seen."""
    query, key, value = made((1, 1, 2, length, 16, 16), torch.bfloat16, device)
    mask = torch.arange(length, device=device)[None] != length - 70
    key[:, :, length - 70] = query[0, 0] * 4  # so that it would have most of the weight
    assert fault(by_kernel(query, key, value, mask), query, key, value, mask) < 1


SEEN = (0, 0), (0, 4500), (4095, 4097), (4499, 4500), (2000, 4300), (1, 2)


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
def test_masks_that_are_read_before(compute, device):
    """A kernel of its own reads a long one, 4096 keys at a time."""
    query, key, value = made((6, 1, 2, 4500, 16, 16), torch.bfloat16, device)
    mask = torch.zeros(6, 4500, dtype=torch.bool, device=device)
    for row, (first, after) in zip(mask, SEEN, strict=True):
        row[first:after] = True
    mask[4, 2500:4200] = False
    expected = by_operator(query, key, value, mask)
    for row, x, y in zip(mask, key, value, strict=True):
        seen = row.nonzero().flatten().tolist() or [0, -1]
        for z in (x, y):
            z[:, : seen[0]] = z[:, seen[-1] + 1 :] = torch.nan
    found = compute(query, key, value, mask)
    assert not found[0].any()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)


def test_ends_of_long_masks(device):
    """The first key that is seen, the one after the last, and how many are seen: holes are known by the number."""
    query, key, value = made((4, 1, 1, 9000, 16, 16), torch.bfloat16, device)
    mask = torch.zeros(4, 9000, dtype=torch.bool, device=device)
    mask[0, 4095:4097] = mask[1, [5, 8999]] = mask[2] = True
    tensors, numbers = launch.arguments(query, key, value, mask, torch.empty_like(query), 1.0)
    step = launch.steps_of(tensors, numbers, launch.constants_of(query, key, value, mask))[0]
    step.kernel[(step.grid,)](*step.arguments, **step.options)
    assert tensors["ends"].tolist() == [[4095, 4097, 2], [5, 9000, 2], [0, 9000, 9000], [0, 0, 0]]


@pytest.mark.parametrize(
    "layout", ["tokens first", "uneven rows", "uneven values", "uneven columns", "a broadcast mask"]
)
def test_any_strides(layout, device):
    query, key, value = made((2, 2, 4, 150, 16, 16), torch.bfloat16, device)
    mask = torch.rand(2, 150, device=device) < 0.5
    expected = by_operator(query, key, value, mask)
    if layout == "tokens first":
        key, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (key, value))
        mask = mask.t().contiguous().t()
    elif layout == "uneven rows":
        key, value = (torch.nn.functional.pad(x, (1, 2))[..., 1:-2] for x in (key, value))
        query = torch.nn.functional.pad(query, (1, 0))[..., 1:]
    elif layout == "uneven values":
        value = torch.nn.functional.pad(value, (0, 1))[..., :-1]
    elif layout == "uneven columns":
        key, value = (x.mT.contiguous().mT for x in (key, value))
        query = query.mT.contiguous().mT
    else:
        mask = mask[:1]
        expected = by_operator(query, key, value, mask.expand(2, -1))
    torch.testing.assert_close(by_operator(query, key, value, mask), expected, rtol=0, atol=0)
    if layout != "uneven columns":
        found = by_kernel(query, key, value, mask.contiguous().expand(2, -1))
        assert fault(found, query, key, value, mask.expand(2, -1)) < 1


def test_a_cache_that_grows(device):
    """A kernel that was compiled for one length is launched again for others."""
    query, key, value = made((1, 2, 4, 270, 16, 16), torch.float16, device)
    for length in (*range(125, 131), 255, 256, 257, 270):
        given = query, key[:, :, :length], value[:, :, :length]
        assert fault(by_kernel(*given), *given) < 1


def test_scores_that_only_their_difference_keeps_finite(device):
    query = torch.full((1, 2, 16), 240.0, device=device, dtype=torch.float16)
    key = torch.full((1, 1, 200, 16), 240.0, device=device, dtype=torch.float16)
    value = torch.randn(1, 1, 200, 16, device=device).half()
    for sign in (1, -1):
        assert fault(by_kernel(query, sign * key, value, scale=1.0), query, sign * key, value, scale=1.0) < 1


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of rows that are not stored
@pytest.mark.parametrize("last", [0, 64, 128])
def test_keys_with_scores_of_minus_infinity_have_no_weight(last, compute, device):
    """The first key alone, the first block and one more, the first part and one more."""
    query, key, value = made((1, 2, 2, 200, 16, 16), torch.bfloat16, device)
    query[..., 0] = 1
    key[:, :, : last + 1, 0] = -torch.inf
    assert fault(compute(query, key, value), query, key, value) < 1


@pytest.mark.parametrize("compute", [by_kernel, by_operator])
def test_nan_reaches_its_own_sequence_only(compute, device):
    query, key, value = made((2, 1, 2, 200, 16, 16), torch.bfloat16, device)
    expected = compute(query, key, value)
    key[1, 0, 150, 3] = torch.nan
    found = compute(query, key, value)
    assert torch.equal(found[0], expected[0])
    assert found[1].isnan().all()


def test_default_scale(device):
    operands = made((1, 1, 2, 20, 64, 16), torch.bfloat16, device)
    assert torch.equal(decode_attention(*operands), decode_attention(*operands, scale=0.125))


@pytest.mark.parametrize("shape", [(0, 2, 4, 30, 16, 16), (2, 2, 4, 0, 16, 16), (2, 2, 4, 30, 16, 0)], ids=str)
def test_empty(shape, device):
    found = decode_attention(*made(shape, torch.bfloat16, device))
    assert found.shape == (shape[0], 8, shape[5])
    assert not found.any()


def test_wrong_operands(device):
    query, key, value = made((2, 2, 4, 30, 16, 16), torch.bfloat16, device)
    mask = torch.ones(2, 30, dtype=torch.bool, device=device)
    wrong = {
        "query has shape [2, 8, 1, 16]": (query[:, :, None], key, value),
        "key has shape [2, 2, 30, 12]": (query, key[..., :12], value),
        "value has shape [2, 2, 20, 16]": (query, key, value[:, :, :20]),
        "at most 268435456 keys": (query, *(x[:, :, :1].expand(-1, -1, 2**28 + 1, -1) for x in (key, value))),
        "a head must have at least one element": (query[..., :0], key[..., :0], value),
        "2 key heads cannot be shared by 7": (query[:, :7], key, value),
        "a head has at most 256": (query.repeat(1, 1, 17), key.repeat(1, 1, 1, 17), value),
        "together 8192": (query.repeat(1, 65, 1), key, value.repeat(1, 1, 1, 8)),
        "520 query heads of 1 elements": (query[..., :1].repeat(1, 130, 1), key[..., :1], value[..., :1]),
        "query is torch.float32": (query.float(), key, value),
        "value is torch.float16 and query is torch.bfloat16": (query, key, value.half()),
        "mask is torch.int64": (query, key, value, mask.long()),
        "mask has shape [2, 29]": (query, key, value, mask[:, 1:]),
        "mask has shape [2, 1, 1, 30]": (query, key, value, mask[:, None, None]),
    }
    for said, given in wrong.items():
        with pytest.raises(RuntimeError) as raised:
            decode_attention(*given)
        assert said in str(raised.value)


def test_torchs_checks_of_operators(device):
    query, key, value = made((2, 2, 4, 30, 16, 16), torch.bfloat16, device)
    for mask in (None, prefix(key, 3, 30)):
        torch.library.opcheck(torch.ops.tritonmm.decode_attention.default, (query, key, value, mask, 0.3))


@pytest.mark.gpu
def test_a_captured_graph_follows_its_mask(device):
    """Replayed on another stream, too, with operands that have changed since."""
    query, key, value = made((4, 8, 4, 1024, 128, 128), torch.bfloat16, device)
    mask = prefix(key, 1, 100, 512, 1000)
    by_kernel(query, key, value, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [by_kernel(query, key, value, mask) for _ in range(3)]
    side = torch.cuda.Stream()
    for more in range(3):
        mask.copy_(prefix(key, 1 + more, 100 + more, 512 + more, 1000 + more))
        query.normal_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.replay()
        torch.cuda.current_stream().wait_stream(side)
        for x in found:
            assert torch.equal(x, found[0])
            assert fault(x, query, key, value, mask) < 1


@pytest.mark.gpu
def test_torchs_compiler_computes_the_mask_of_all_layers_once(device):
    def attend(query, key, value, position):
        mask = (torch.arange(key.shape[2], device=device) <= position).expand(len(key), -1)
        for _ in range(3):
            query = decode_attention(query, key, value, mask)
        return query

    given = *made((4, 2, 4, 200, 64, 64), torch.bfloat16, device), torch.tensor(70, device=device)
    found, (code,) = run_and_get_code(torch.compile(attend, dynamic=False), *given)
    assert torch.equal(found, attend(*given))
    assert code.count("ops.tritonmm.decode_attention.default(") == 3
    assert code.count(".run(") == 1


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device):
    query = torch.randn(1, 4, 128, device=device).bfloat16()
    key, value = (
        torch.zeros(1, 2**25 + 64, 1, 128, device=device, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)
    )
    mask = torch.zeros(1, key.shape[2], dtype=torch.bool, device=device)
    mask[:, -3:] = True
    for x in (key, value):
        x[:, :, -70:].normal_()
    found = by_kernel(query, key, value, mask)
    assert fault(found, query, key[:, :, -70:], value[:, :, -70:], mask[:, -70:]) < 1
