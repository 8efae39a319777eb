"""Tuned tables for tests: rows, files, and what is selected by them."""

import json

from tritonmm import gpu as gpus
from tritonmm import orders, tuned
from tritonmm import selection as select
from tritonmm.config import Config
from tritonmm.problem import Problem
from tritonmm.tuned.table import Row

H200 = gpus.spec("h200")
PROBLEM = Problem.dense(4096, 4096, 4096, layout="nt")
WINNER = Config("hopper", 128, 128, 64, 4, 8, persistent=True, order=orders.SwizzleMerge(3))
"""Legal, and not what the estimates choose."""


def forget():
    tuned._TABLES.clear()


def row(problem=PROBLEM, config=WINNER, us=200.0, triton=tuned._TRITON, date="2026-11-20"):
    return Row(problem, config, us, "0.1.0", triton, date)


def valid(*rows):
    return {
        "schema": 2,
        "gpu": {"name": "h200", "arch": "sm_90", "sms": 132},
        "rows": [json.loads(x.to_json()) for x in rows or (row(),)],
    }


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    forget()


def best(problem=PROBLEM, gpu=H200):
    return select.best(problem, gpu)
