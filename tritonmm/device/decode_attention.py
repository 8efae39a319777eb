"""Attention of one new token of each sequence.

    keys        |  part  |  part  |  part  |  part  |  part  |    of equal size
    seen            |<-------------------------->|                from the first key in the mask to the last
    programs        | 0  |   1    |      2       |                of a pair: a sequence and a key head

The parts that have seen keys are divided among the programs of a pair. The query heads that share the key head are the
rows of a tile. A program stores the sums of each of its parts to the part's slot, and the last program to arrive merges
the slots in order. So the bits do not depend on the number of programs.
"""

import triton
import triton.language as tl

from tritonmm.device.numeric import multiple_of, rounded
from tritonmm.device.pdl import follow_previous_grid
from tritonmm.device.split_k import arrive

STRIDES = "q_batch", "q_head", "k_batch", "k_group", "k_key", "v_batch", "v_group", "v_key", "mask_batch"
"""A cache that grows changes some of them at each token, so kernels are not specialized for their values."""


@triton.constexpr_function
def slot_elements(heads, dim):
    """fp32 numbers in a part's slot: sums of heads of `dim` elements, largest scores and denominators."""
    return heads * (dim + 2)


@triton.jit(do_not_specialize=["length", "part_bits", "parts", "pairs", "programs", "groups", "scale", *STRIDES])
def decode_attention_kernel(
    query, key, value, mask, ends, out, sums, flags,
    length, part_bits, parts, pairs, programs, groups, scale,
    q_batch, q_head, k_batch, k_group, k_key, v_batch, v_group, v_key, mask_batch,
    HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_COLS: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr,
    MERGED_ROWS: tl.constexpr, TOGETHER: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """softmax(query @ key.mT * scale * ln(2), where mask) @ value, with HEADS query heads for each key head.

    query: (batch, groups * HEADS, DIM), key: (batch, groups, length, DIM), value: (batch, groups, length, VALUE_DIM),
    mask: (batch, length), bytes, or None. They are contiguous along their last dimension, and their other strides are
    named after them. ends: what `mask_ends_kernel` found, or None without a mask and where SCAN is not 0.
    out: (batch, groups * HEADS, VALUE_DIM), contiguous. sums, flags: as in `device/split_k.py`, of `parts` parts of
    2**part_bits keys for each pair; a slot has `slot_elements`.
    pairs: batch * groups. programs: of each pair.
    ROWS, COLS, VALUE_COLS: powers of two that hold HEADS, DIM and VALUE_DIM, at least 16; MERGED_ROWS: the least power
    of two that holds HEADS. ALIGN: 8 or 1, which divides the strides of query, key and value. BLOCK: keys read at a
    time, which divides a part. STAGES: one more than the blocks in shared memory. SCAN: a power of two that holds
    `length`, or 0: then `mask_ends_kernel` has read the mask. TOGETHER: parts that are loaded at a time when they are
    merged.

    What lies before the first and after the last key in the mask is not read. A row that sees no key is 0.
    """
    follow_previous_grid()
    program = tl.program_id(0) // pairs
    pair = tl.program_id(0) % pairs
    batch = (pair // groups).to(tl.int64)
    group = (pair % groups).to(tl.int64)
    if mask is not None:
        mask += batch * mask_batch
        if SCAN:  # loaded before the query: both are under way at the same time
            scanned = tl.arange(0, SCAN)
            seen = tl.load(mask + scanned, mask=scanned < length, other=0) != 0
    q_batch, q_head = multiple_of(q_batch, ALIGN), multiple_of(q_head, ALIGN)
    k_batch, k_group, k_key = multiple_of(k_batch, ALIGN), multiple_of(k_group, ALIGN), multiple_of(k_key, ALIGN)
    v_batch, v_group, v_key = multiple_of(v_batch, ALIGN), multiple_of(v_group, ALIGN), multiple_of(v_key, ALIGN)
    key += batch * k_batch + group * k_group
    value += batch * v_batch + group * v_group
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, COLS)
    value_dims = tl.arange(0, VALUE_COLS)
    heads = tl.load(
        query + batch * q_batch + (group * HEADS + rows)[:, None] * q_head + dims[None, :],
        mask=_load_mask(rows < HEADS, dims, DIM, COLS),
        other=0.0,
    )
    if INTERPRETED:  # numpy has no bf16
        heads = heads.to(tl.float32)
    first, after = 0, length
    if mask is not None:
        if SCAN:
            first, after, count = _ends(seen, scanned, length)
        else:
            ends += 3 * batch
            first, after, count = tl.load(ends), tl.load(ends + 1), tl.load(ends + 2)
        has_holes = count < after - first
    first_part = first >> part_bits
    seen_parts = ((after + (1 << part_bits) - 1) >> part_bits) - first_part
    own = first_part + seen_parts * program // programs
    beyond = first_part + seen_parts * (program + 1) // programs
    SLOT: tl.constexpr = slot_elements(HEADS, VALUE_DIM)
    slots = sums + pair.to(tl.int64) * parts * SLOT
    for part in range(own, beyond):
        start = tl.maximum(part << part_bits, first)
        end = tl.minimum((part + 1) << part_bits, after)
        most = tl.full([ROWS], float("-inf"), tl.float32)
        denominator = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, VALUE_COLS], tl.float32)
        for at in tl.range(start, end, BLOCK, num_stages=STAGES):
            keys = at + tl.arange(0, BLOCK)
            is_seen = keys < end
            rows_of_keys = keys.to(tl.int64)[:, None]
            k = tl.load(
                key + rows_of_keys * k_key + dims[None, :], mask=_load_mask(is_seen, dims, DIM, COLS), other=0.0
            )
            v = tl.load(
                value + rows_of_keys * v_key + value_dims[None, :],
                mask=_load_mask(is_seen, value_dims, VALUE_DIM, VALUE_COLS),
                other=0.0,
            )
            if mask is not None:  # noqa: SIM102, Triton evaluates both sides of `and`
                if has_holes:  # else no block waits for its part of the mask
                    is_seen = is_seen & (tl.load(mask + keys, mask=is_seen, other=0) != 0)
            scores = tl.where(is_seen[None, :], tl.dot(heads, tl.trans(k.to(heads.dtype))) * scale, float("-inf"))
            higher = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen no key yet
            weights = tl.exp2(scores - base[:, None])
            shrink = tl.exp2(most - base)
            denominator = denominator * shrink + tl.sum(weights, 1)
            weights = rounded(weights, v.dtype, INTERPRETED).to(heads.dtype)
            total = tl.dot(weights, v.to(heads.dtype), total * shrink[:, None])
            most = higher
        _store_part(slots + part * SLOT, total, most, denominator, HEADS, ROWS, VALUE_DIM, VALUE_COLS)
    if own < beyond:
        last, _ = arrive(flags + pair, own == first_part, beyond - own, seen_parts)
    else:
        last = (seen_parts == 0) & (program == 0)
    if last:
        slots += first_part * SLOT
        out += (batch * groups + group) * HEADS * VALUE_DIM
        _merge(out, slots, seen_parts, HEADS, MERGED_ROWS, VALUE_DIM, VALUE_COLS, TOGETHER, INTERPRETED)


@triton.jit(do_not_specialize=["length", "mask_batch"])
def mask_ends_kernel(mask, ends, length, mask_batch, SCAN: tl.constexpr):
    """For each sequence the first key in its mask, the one after the last, and how many are in it; zeros if none is.

    mask: (batch, length), bytes, contiguous along the last dimension. ends: (batch, 3), int32. SCAN: keys read at a
    time. A program for each sequence.
    """
    follow_previous_grid()
    batch = tl.program_id(0).to(tl.int64)
    mask += batch * mask_batch
    ends += 3 * batch
    first, after, count = length, 0, 0
    for start in range(0, length, SCAN):
        keys = start + tl.arange(0, SCAN)
        seen = tl.load(mask + keys, mask=keys < length, other=0) != 0
        first_here, after_here, count_here = _ends(seen, keys, length)
        if count_here > 0:
            first, after = tl.minimum(first, first_here), after_here
        count += count_here
    tl.store(ends, tl.minimum(first, after))
    tl.store(ends + 1, after)
    tl.store(ends + 2, count)


@triton.jit
def _ends(seen, keys, length):
    """The first of the keys that is seen, the one after the last, and how many there are; 0, 0 and 0 if none is."""
    after = tl.max(tl.where(seen, keys + 1, 0), 0)
    first = tl.minimum(tl.min(tl.where(seen, keys, length), 0), after)
    return first, after, tl.sum(seen.to(tl.int32), 0)


@triton.jit
def _load_mask(is_row, dims, DIM: tl.constexpr, COLS: tl.constexpr):
    """The mask of a load of COLS columns for each row: rows that exist, and the first DIM columns."""
    return is_row[:, None] if DIM == COLS else is_row[:, None] & (dims < DIM)[None, :]


@triton.jit
def _store_part(
    slot, total, most, denominator, HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr
):
    """Stores a part's sums, largest scores and denominators to its slot."""
    SUMS: tl.constexpr = HEADS * DIM
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, COLS)
    is_head = rows < HEADS
    tl.store(slot + rows[:, None] * DIM + dims[None, :], total, mask=is_head[:, None] & (dims < DIM)[None, :])
    tl.store(slot + SUMS + rows, most, mask=is_head)
    tl.store(slot + SUMS + HEADS + rows, denominator, mask=is_head)


@triton.jit
def _merge(
    out, slots, count, HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, COLS: tl.constexpr,
    TOGETHER: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Merges `count` parts of HEADS rows in their order, and stores the result; of no parts it is 0.

    The loads of TOGETHER parts are in flight at a time.
    """
    SUMS: tl.constexpr = HEADS * DIM
    SLOT: tl.constexpr = slot_elements(HEADS, DIM)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, COLS)
    at = rows[:, None] * DIM + dims[None, :]
    inside = (rows < HEADS)[:, None] & (dims < DIM)[None, :]
    most = tl.full([ROWS], float("-inf"), tl.float32)
    denominator = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, count, TOGETHER):
        for i in tl.static_range(TOGETHER):
            slot = slots + (first + i) * SLOT
            there = rows < tl.where(first + i < count, HEADS, 0)
            part_most = tl.load(slot + SUMS + rows, mask=there, other=float("-inf"), cache_modifier=".cg")
            part_sum = tl.load(slot + SUMS + HEADS + rows, mask=there, other=0.0, cache_modifier=".cg")
            part_total = tl.load(slot + at, mask=inside & there[:, None], other=0.0, cache_modifier=".cg")
            higher = tl.maximum(most, part_most)
            base = tl.where(higher == float("-inf"), 0.0, higher)  # of rows that have seen no key yet
            shrink, grow = tl.exp2(most - base), tl.exp2(part_most - base)
            denominator = denominator * shrink + part_sum * grow
            total = total * shrink[:, None] + part_total * grow[:, None]
            most = higher
    found = total / tl.where(denominator == 0, 1.0, denominator)[:, None]
    tl.store(out + at, rounded(found, out.dtype.element_ty, INTERPRETED), mask=inside)
