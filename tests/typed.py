"""What a type checker sees of the public names, though they are imported when they are touched: for `make lint`."""

from contextlib import AbstractContextManager
from typing import assert_type

import torch

import tritonmm

a = torch.empty(4, 5)
b = torch.empty(5, 6)

assert_type(tritonmm.matmul(a, b), torch.Tensor)
assert_type(tritonmm.linear(a, b), torch.Tensor)
assert_type(tritonmm.scaled_mm(a, b, scale_a=a, scale_b=b), torch.Tensor)
assert_type(tritonmm.select(4, 5, 6), tritonmm.Config)
assert_type(tritonmm.explain(a, b), tritonmm.Explanation)
assert_type(tritonmm.use("always"), AbstractContextManager[None])
assert_type(tritonmm.orders.parse("hilbert"), tritonmm.orders.Order)
assert_type(tritonmm.l2.traffic(4, 5, 6, tritonmm.Config(), gpu="h200").hit_rate, float)
assert_type(tritonmm.accumulation.emulate(a, b), torch.Tensor)
assert_type(tritonmm.accumulation.verify(a, b, a), tritonmm.accumulation.Verdict)
assert_type(tritonmm.layouts.Swizzle(3, 3, 3).period, int)
