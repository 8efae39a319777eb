"""A tensor-parallel MLP and FSDP2 steps under the override, compared with the same without: one process a rank.

    python tests/distributed_check.py          # 2 ranks: GPUs with NCCL, or CPUs with Gloo and Triton's interpreter

Prints a line a check and exits with 1 if one fails.
"""

import copy
import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2


def mlp(device) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).to(device)


def tensor_parallel(module, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def fully_sharded(module, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in (module[0], module[2], module):
        fully_shard(layer, mesh=mesh)
    return module


def train(module, x, target, steps=3) -> torch.Tensor:
    """The losses of some steps, then every parameter in full."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().reshape(1))
    parameters = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return torch.cat([*losses, *(p.detach().flatten() for p in parameters)])


def rank(index: int, port: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from tritonmm.torch_ops import aten
    from tritonmm.torch_ops.override import Override

    kind = "cuda" if torch.cuda.device_count() >= RANKS else "cpu"
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=index, world_size=RANKS)
    mesh = init_device_mesh(kind, (RANKS,))
    override = Override(kind.upper())
    taken = []
    find = aten._route
    aten._route = lambda *args: taken.append(find(*args)) or taken[-1]

    wrong = 0
    for name, shard, own in (("tensor-parallel MLP", tensor_parallel, False), ("FSDP2", fully_sharded, True)):
        torch.manual_seed(1 + index * own)  # FSDP's ranks have batches of their own
        x, target = torch.randn(48, 64, device=device), torch.randn(48, 32, device=device)
        module = mlp(device)
        expected = train(shard(copy.deepcopy(module), mesh), x, target)
        taken.clear()
        with override.use("always"):
            found = train(shard(module, mesh), x, target)
        ours = sum(route is not None for route in taken)
        apart = (found - expected).abs().max().item()
        right = apart < 1e-5 and ours > 0
        wrong += not right
        verdict = "ok" if right else "WRONG"
        print(f"rank {index}: {name} on {device}: {ours} products are ours, {apart:.1e} apart: {verdict}")
    dist.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    if torch.cuda.device_count() < RANKS:
        os.environ["TRITON_INTERPRET"] = "1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank, (port,), nprocs=RANKS)
