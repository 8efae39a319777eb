"""Grouped products for tests: what they are, group by group, and memory that shows where nothing was written."""

import contextlib

import torch
from bounds import assert_within

SHAPES = {
    "rows": ((17, 20), (4, 20, 9)),
    "columns": ((4, 9, 20), (20, 17)),
    "k": ((9, 17), (17, 20)),
    "batch": ((4, 9, 20), (4, 20, 7)),
}
"""Shapes of a and b, by what the groups divide: 17, among 4 groups."""

OFFSETS = {
    "even": ([8, 16, 24, 32], 32),
    "ragged": ([3, 3, 20, 21, 37, 37, 50], 50),
    "large": ([200, 200, 201, 520, 776, 777], 777),
    "one": ([5], 5),
    "all empty": ([0, 0, 0], 9),
    "rows are left": ([4, 9], 30),
    "one-hot": ([0, 0, 61, 61, 61], 61),
    "not sorted": ([30, 10, -7, 40, 12], 50),
    "beyond the end": ([-5, 100, 2**31 - 1, -(2**31)], 33),
    "many": (list(range(0, 3 * 130, 3)), 3 * 130),
}
"""Offsets of groups, and what they divide."""

OFFS = [5, 5, 12, 15]
"""The second group is empty, and 2 rows belong to none."""


def bounds_of(offs, total):
    """Where each group starts and ends, of offsets that may be anything."""
    bounds, end = [], 0
    for each in offs:
        start, end = end, max(end, min(max(each, 0), total))
        bounds.append((start, end))
    return bounds


def expected_of(a, b, offs=None, bias=None):
    """The grouped product, differentiable; 0 where nothing belongs to a group."""
    if offs is None:
        return a @ b + (0 if bias is None else bias.unsqueeze(1))
    total = a.shape[0] if a.dim() < b.dim() else b.shape[1] if a.dim() > b.dim() else a.shape[1]
    bounds = bounds_of(offs, total)
    added = [0] * len(bounds) if bias is None else list(bias)
    if a.dim() == b.dim():
        return torch.stack([a[:, s:e] @ b[s:e] + x for (s, e), x in zip(bounds, added, strict=True)])
    left = total - bounds[-1][1]
    if a.dim() < b.dim():
        parts = [a[s:e] @ matrix + x for (s, e), matrix, x in zip(bounds, b, added, strict=True)]
        return torch.cat([*parts, a.new_zeros(left, b.shape[-1])])
    parts = [matrix @ b[:, s:e] for (s, e), matrix in zip(bounds, a, strict=True)]
    return torch.cat([*parts, b.new_zeros(a.shape[1], left)], 1)


def in_groups(found, a, b, offs):
    """The rows or columns of a result that belong to a group."""
    if offs is None or a.dim() == b.dim():
        return found
    total = a.shape[0] if a.dim() == 2 else b.shape[1]
    end = bounds_of(offs, total)[-1][1] if offs else 0
    return found[:end] if a.dim() == 2 else found[:, :end]


def assert_grouped(found, a, b, offs=None, bias=None):
    """Within the bound of one rounding, as far as the result belongs to a group."""

    def exact(convert):
        left, right, added = (None if x is None else convert(x.detach().double()) for x in (a, b, bias))
        return in_groups(expected_of(left, right, offs, added), a, b, offs)

    expected, sizes, terms = (exact(each) for each in (lambda x: x, torch.abs, torch.ones_like))
    assert_within(in_groups(found.detach(), a, b, offs), expected, sizes, terms)


def int32(offs, device):
    return torch.tensor(offs, dtype=torch.int32, device=device)


@contextlib.contextmanager
def poisoned():
    """torch fills new memory with NaN, and of integers with the largest."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
