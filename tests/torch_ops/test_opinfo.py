"""torch's own sample inputs of its matrix products, through our functions and through torch's under the override."""

import pytest
import torch
from bounds import assert_like_torch

import tritonmm

methods = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations", reason="torch's samples need expecttest"
)

OURS = {
    "addbmm": tritonmm.addbmm,
    "addmm": tritonmm.addmm,
    "baddbmm": tritonmm.baddbmm,
    "bmm": tritonmm.bmm,
    "dot": tritonmm.dot,
    "matmul": tritonmm.matmul,
    "mm": tritonmm.mm,
    "mv": tritonmm.mv,
    "nn.functional.linear": tritonmm.linear,
}
TORCHS = (*OURS, "addmv", "einsum", "inner", "linalg.multi_dot", "tensordot", "vdot")
OPS = {op.name: op for op in methods.op_db if op.name in TORCHS and not op.variant_test_name}
LAYOUTS = pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "noncontiguous"])


def samples(name, device, dtype, contiguous):
    for sample in OPS[name].sample_inputs(device, dtype):
        sample = sample if contiguous else sample.noncontiguous()
        yield (sample.input, *sample.args), sample.kwargs


def test_torch_has_all_of_them():
    assert set(OPS) == set(TORCHS)


@pytest.mark.parametrize(
    ("dtype", "contiguous"),
    [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True), (torch.float16, False)],
    ids=["fp32", "fp32 noncontiguous", "bf16", "fp16 noncontiguous"],
)
@pytest.mark.parametrize("name", OURS)
def test_our_functions_on_torchs_samples(name, dtype, contiguous, device):
    for args, kwargs in samples(name, device, dtype, contiguous):
        # Derivatives in half precision would be rounded once for beta and once for the sum over a broadcast C.
        derivatives = 0 if dtype != torch.float32 else 2 if contiguous else 1
        assert_like_torch(OURS[name], OPS[name].op, args, kwargs, derivatives)


@LAYOUTS
@pytest.mark.parametrize("name", TORCHS)
def test_torchs_functions_under_the_override(name, contiguous, device, override):
    def overridden(*args, **kwargs):
        return OPS[name].op(*args, **kwargs)

    for args, kwargs in samples(name, device, torch.float32, contiguous):
        with override.use("always"):
            assert_like_torch(overridden, OPS[name].op, args, kwargs, derivatives=1 if contiguous else 0)
