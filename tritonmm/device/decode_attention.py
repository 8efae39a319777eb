"""Attention of one new token of each sequence: a program for each part of the keys, for all query heads that share a
key head."""

import triton
import triton.language as tl

from tritonmm.device.numeric import multiple_of, rounded
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import arrive

STRIDES = (
    "q_batch", "q_head", "k_batch", "k_group", "k_key", "v_batch", "v_group", "v_key", "mask_batch", "mask_key",
)  # fmt: skip
"""A cache that grows changes some of them at each token: no kernel is compiled for their values."""


@triton.jit(do_not_specialize=["length", "part", "splits", "groups", "scale", *STRIDES])
def decode_attention_kernel(
    query, key, value, mask, out, sums, flags,
    length, part, splits, groups, scale,
    q_batch, q_head, k_batch, k_group, k_key, v_batch, v_group, v_key, mask_batch, mask_key,
    HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_COLS: tl.constexpr, MASKED: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    SCAN: tl.constexpr, MERGED_ROWS: tl.constexpr, TOGETHER: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """softmax(query @ key.mT * scale * ln(2), where mask) @ value, with HEADS query heads for each key head.

    query: (batch, groups * HEADS, DIM), key: (batch, groups, length, DIM), value: (batch, groups, length, VALUE_DIM),
    contiguous along their last dimension. mask: (batch, length), bytes, if MASKED. Strides are named after them.
    out: (batch, groups * HEADS, VALUE_DIM), contiguous. sums, flags: of `splits` parts of `part` keys of each batch and
    group, as in `device/split_k.py`; a slot has the sums, the largest scores and the denominators of HEADS rows.
    ROWS, COLS, VALUE_COLS: powers of two that hold HEADS, DIM and VALUE_DIM, at least 16; MERGED_ROWS: the least that
    holds HEADS. ALIGN: 8 or 1, which divides the strides of key and value. BLOCK: keys read at a time, which divides
    `part`. STAGES: blocks in shared memory at a time. SCAN: keys whose mask is read at a time. TOGETHER: parts whose
    sums are read at a time.

    What lies before the first and after the last key in the mask is not read. A row that sees no key is 0. Parts are
    merged in their order, so the bits are reproducible.
    """
    follow_previous_grid()
    split = tl.program_id(0) % splits
    pair = tl.program_id(0) // splits
    batch = (pair // groups).to(tl.int64)
    group = (pair % groups).to(tl.int64)
    k_batch, k_group, k_key = multiple_of(k_batch, ALIGN), multiple_of(k_group, ALIGN), multiple_of(k_key, ALIGN)
    v_batch, v_group, v_key = multiple_of(v_batch, ALIGN), multiple_of(v_group, ALIGN), multiple_of(v_key, ALIGN)
    key += batch * k_batch + group * k_group
    value += batch * v_batch + group * v_group
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, COLS)
    value_dims = tl.arange(0, VALUE_COLS)
    is_head = rows < HEADS
    heads = tl.load(
        query + batch * q_batch + (group * HEADS + rows)[:, None] * q_head + dims[None, :],
        mask=is_head[:, None] & (dims < DIM)[None, :],
        other=0.0,
    )
    if INTERPRETED:  # numpy has no bf16
        heads = heads.to(tl.float32)
    start = split * part
    end = tl.minimum(start + part, length)
    if MASKED:
        mask += batch * mask_batch
        start, end = _seen(mask, mask_key, start, end, SCAN)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, VALUE_COLS], tl.float32)
    for first in tl.range(start, end, BLOCK, num_stages=STAGES):
        keys = first + tl.arange(0, BLOCK)
        is_key = keys < end
        rows_of_keys = keys.to(tl.int64)[:, None]
        k = tl.load(key + rows_of_keys * k_key + dims[None, :], mask=_load_mask(is_key, dims, DIM, COLS), other=0.0)
        v = tl.load(
            value + rows_of_keys * v_key + value_dims[None, :],
            mask=_load_mask(is_key, value_dims, VALUE_DIM, VALUE_COLS),
            other=0.0,
        )
        seen = is_key
        if MASKED:
            seen = tl.load(mask + keys.to(tl.int64) * mask_key, mask=is_key, other=0) != 0
        scores = tl.where(seen[None, :], tl.dot(heads, tl.trans(k.to(heads.dtype))) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen no key yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        denominator = denominator * shrink + tl.sum(weights, 1)
        weights = rounded(weights, v.dtype, INTERPRETED).to(heads.dtype)
        total = tl.dot(weights, v.to(heads.dtype), total * shrink[:, None])
        most = higher
    out += (batch * groups + group) * HEADS * VALUE_DIM
    if splits == 1:
        _store(out, total, denominator, rows, HEADS, VALUE_DIM, VALUE_COLS, INTERPRETED)
    else:
        SUMS: tl.constexpr = HEADS * VALUE_DIM
        SLOT: tl.constexpr = SUMS + 2 * HEADS
        sums += pair.to(tl.int64) * splits * SLOT
        own = sums + split * SLOT
        inside = is_head[:, None] & (value_dims < VALUE_DIM)[None, :]
        tl.store(own + rows[:, None] * VALUE_DIM + value_dims[None, :], total, mask=inside)
        tl.store(own + SUMS + rows, most, mask=is_head)
        tl.store(own + SUMS + HEADS + rows, denominator, mask=is_head)
        last, _ = arrive(flags + pair, split == 0, 1, splits)
        if last:
            _merge(out, sums, splits, HEADS, MERGED_ROWS, VALUE_DIM, VALUE_COLS, TOGETHER, INTERPRETED)


@triton.jit
def _seen(mask, stride, start, end, SCAN: tl.constexpr):
    """The part of the keys from start to end that reaches from the first one in the mask to the last."""
    first, after = end, start
    for at in range(start, end, SCAN):
        keys = at + tl.arange(0, SCAN)
        seen = tl.load(mask + keys.to(tl.int64) * stride, mask=keys < end, other=0) != 0
        first = tl.minimum(first, tl.min(tl.where(seen, keys, end), 0))
        after = tl.maximum(after, tl.max(tl.where(seen, keys + 1, start), 0))
    return first, after


@triton.jit
def _load_mask(is_key, dims, DIM: tl.constexpr, COLS: tl.constexpr):
    """The mask of a load of COLS columns for each key: keys that exist, and the first DIM columns."""
    return is_key[:, None] if DIM == COLS else is_key[:, None] & (dims < DIM)[None, :]


@triton.jit
def _merge(
    out, sums, splits, HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr,
    TOGETHER: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Merges the parts of HEADS rows in their order. The loads of TOGETHER parts are in flight at a time."""
    SUMS: tl.constexpr = HEADS * DIM
    SLOT: tl.constexpr = SUMS + 2 * HEADS
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, COLS)
    at = rows[:, None] * DIM + dims[None, :]
    inside = (rows < HEADS)[:, None] & (dims < DIM)[None, :]
    most = tl.full([ROWS], float("-inf"), tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, splits, TOGETHER):
        for i in tl.static_range(TOGETHER):
            slot = sums + (first + i) * SLOT
            there = rows < tl.where(first + i < splits, HEADS, 0)
            part_most = tl.load(slot + SUMS + rows, mask=there, other=float("-inf"), cache_modifier=".cg")
            part_sum = tl.load(slot + SUMS + HEADS + rows, mask=there, other=0.0, cache_modifier=".cg")
            part_total = tl.load(slot + at, mask=inside & there[:, None], other=0.0, cache_modifier=".cg")
            higher = tl.maximum(most, part_most)
            base = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen no key yet
            shrink, grow = tl.exp2(most - base), tl.exp2(part_most - base)
            denominator = denominator * shrink + part_sum * grow
            total = total * shrink[:, None] + part_total * grow[:, None]
            most = higher
    _store(out, total, denominator, rows, HEADS, DIM, COLS, INTERPRETED)


@triton.jit
def _store(
    out, total, denominator, rows, HEADS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr, INTERPRETED: tl.constexpr
):
    """total / denominator, 0 where the denominator is."""
    dims = tl.arange(0, COLS)
    found = total / tl.where(denominator == 0, 1.0, denominator)[:, None]
    inside = (rows < HEADS)[:, None] & (dims < DIM)[None, :]
    at = rows[:, None] * DIM + dims[None, :]
    tl.store(out + at, rounded(found, out.dtype.element_ty, INTERPRETED), mask=inside)
