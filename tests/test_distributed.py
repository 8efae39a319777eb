"""DTensor: our functions know which placements of their operands make which of the result; the override is below it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from bounds import assert_product
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import tritonmm

CHECK = Path(__file__).with_name("distributed_check.py")
WHOLE, ROWS, COLS = Replicate(), Shard(0), Shard(1)


@pytest.fixture(scope="module")
def mesh(device):
    """Two ranks of which this process is the first, and no other there is: nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh(device.type, (2,))
    dist.destroy_process_group()


def of_rank_0(x, placement):
    return x.chunk(2, placement.dim)[0] if isinstance(placement, Shard) else x


@pytest.fixture
def place(mesh):
    return lambda x, placement: DTensor.from_local(of_rank_0(x, placement), mesh, [placement], run_check=False)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [(WHOLE, WHOLE, WHOLE), (ROWS, WHOLE, ROWS), (WHOLE, COLS, COLS), (COLS, ROWS, Partial())],
    ids=str,
)
def test_placements_of_a_product(a, b, out, place, device):
    x, y = torch.randn(6, 8, device=device), torch.randn(8, 4, device=device)
    found = tritonmm.mm(place(x, a), place(y, b))
    assert found.placements == (out,)
    assert found.shape == (6, 4)
    assert_product(found.to_local(), of_rank_0(x, a), of_rank_0(y, b))


def test_a_column_parallel_layer_and_its_derivatives(place, device):
    x, weight, bias = torch.randn(6, 8, device=device), torch.randn(4, 8, device=device), torch.randn(4, device=device)
    w = place(weight, ROWS).requires_grad_()
    found = tritonmm.linear(place(x, WHOLE), w, place(bias, ROWS))
    assert found.placements == (COLS,)
    assert_product(found.to_local(), x, weight[:2].t(), bias[:2])
    found.to_local().sum().backward()
    assert_product(w.grad.to_local(), torch.ones(2, 6, device=device), x)


def test_a_stack_is_sharded_along_its_batch(place, device):
    a, b, c = (torch.randn(shape, device=device) for shape in ((2, 6, 8), (2, 8, 4), (2, 6, 4)))
    found = tritonmm.baddbmm(place(c, ROWS), place(a, ROWS), place(b, ROWS), beta=2)
    assert found.placements == (ROWS,)
    assert_product(found.to_local(), a[:1], b[:1], c[:1], beta=2)


def test_a_sum_is_not_added_to_twice(place, device):
    """Operands sharded along K give partial sums, to each of which C would be added."""
    a, b, c = (torch.randn(shape, device=device) for shape in ((6, 8), (8, 4), (6, 4)))
    found = tritonmm.addmm(place(c, WHOLE), place(a, COLS), place(b, ROWS))
    assert found.placements != (Partial(),)


def test_torchs_products_of_dtensors_under_the_override(place, device, override):
    x, weight = torch.randn(6, 8, device=device), torch.randn(4, 8, device=device)
    with override.use("always"):
        found = torch.nn.functional.linear(place(x, WHOLE), place(weight, ROWS))
    assert found.placements == (COLS,)
    assert_product(found.to_local(), x, weight[:2].t())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks need two GPUs")
def test_two_ranks_train_as_without():
    ran = subprocess.run([sys.executable, str(CHECK)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(": ok") == 2 * 2
