"""Made-up results of a sweep: traffic as the model has it, times made up from that."""

from tritonmm import gpu, orders
from tritonmm.config import Config
from tritonmm.model import l2
from tritonmm.problem import Problem

H200 = gpu.spec("h200")
ABOUT = {"gpu": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0", "regime": "sustained", "date": "2026-11-20"}
N, K = 2048, 1024


def trial(m: int, order: str, block_m: int, noise: float = 0.0) -> dict:
    """An ok row of plain 128-column tiles without counters."""
    problem = Problem(m, N, K)
    config = Config(block_m=block_m, order=orders.parse(order))
    moved = l2.of(problem, config, H200)
    time_us = 3 + moved.dram_read_bytes / 4e6 + problem.flops / 6e8 + noise
    return {
        **{"m": m, "n": N, "k": K, "batch": 1, "ragged": "", "groups": 0, "layout": "nn", "dtype": "bf16"},
        "kernel": "tile",
        **{"block_m": block_m, "block_n": 128, "block_k": 64, "num_stages": 3, "num_warps": 8, "split_k": 1},
        **{"persistent": False, "order": order, "source": "gpu", "status": "ok", "time_us": time_us},
        **{"torch_us": 1.1 * time_us, "tflops": problem.flops / time_us / 1e6, "hit_rate": moved.hit_rate},
        **{"dram_read_bytes": moved.dram_read_bytes, "dram_write_bytes": moved.dram_write_bytes},
        **{"l2_read_bytes": moved.l2_read_bytes, "traffic_source": "model", "error_ratio": 0.1, "message": ""},
    }


def counted(row: dict, dram: float = 1.0, l2_reads: float = 1.0) -> dict:
    """The row as counters saw it: the model's bytes times these, and half of its hit rate."""
    return row | {
        "counted_dram_read_bytes": dram * row["dram_read_bytes"],
        "counted_l2_read_bytes": l2_reads * row["l2_read_bytes"],
        "counted_hit_rate": row["hit_rate"] / 2,
    }


def write(path, frame, about=ABOUT):
    path.write_text("".join(f"# {key}: {text}\n" for key, text in about.items()) + frame.to_csv(index=False))
    return path


def lines(axes) -> dict:
    return {line.get_gid(): line for line in axes.lines if line.get_gid()}


def texts(sheet) -> str:
    return "\n".join(text.get_text() for text in sheet.texts)
