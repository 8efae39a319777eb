"""Small GEMMs of every kernel family that is legal here, compared with float64: `tritonmm doctor --self-test`.

On a Hopper GPU their bits are compared, too, with those that the model of its tensor cores gives.

They run in a child process, because a kernel that hangs or faults may end it: `python -m
tritonmm.autotune.doctor.selftest` prints a JSON object for each GEMM. Without a GPU it runs in Triton's interpreter,
with the configs of an H200; TRITON_INTERPRET=1 must be set for that.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

SECONDS = 300.0
"""Time limit for all GEMMs together. Compiling them takes a minute at most."""

SAMPLES = 1000
"""Elements of which the bits are compared: a tenth of a second for each GEMM."""

PRODUCTS = (
    ("tile", 200, 136, 104, "bf16", "nn"),
    ("tile", 77, 65, 49, "fp32", "tn"),
    ("tile", 64, 80, 96, "int8", "nt"),
    ("persistent", 200, 136, 104, "bf16", "nt"),
    ("hopper", 200, 136, 104, "bf16", "nt"),
    ("exact", 200, 136, 104, "fp32", "nt"),
    ("skinny", 3, 520, 264, "fp16", "nt"),
    ("mixed_input", 20, 520, 272, "bf16-int8", "nt"),
    ("mixed_input", 20, 520, 272, "bf16-int8-row", "nt"),
    ("grouped", 500, 136, 104, "bf16", "nt"),
)
"""Kernel family, m, n, k, dtype, layout. No block size divides these sizes."""

GROUPS = {"grouped": {"ragged": "m", "groups": 4}}
"""Fields of the problems of families that multiply groups alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one GEMM.

    status: "pass", "fail", or "none" if the family is not legal here.
    said: the error relative to its bound and what the bits are, or the reason.
    """

    kernel: str
    product: str
    status: str
    said: str


def outcomes(interpret: bool) -> Iterator[Outcome]:
    """Runs the GEMMs in a child process. If the child dies, the GEMM that it was running fails."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {}
    child = [sys.executable, "-m", "tritonmm.autotune.doctor.selftest"]
    try:
        ran = subprocess.run(child, capture_output=True, timeout=SECONDS, env=environment)
        output, why = ran.stdout, ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = why or f"the process ended with {ran.returncode}"
    except subprocess.TimeoutExpired as error:
        output, why = error.stdout or b"", f"no end after {SECONDS:.0f} s"
    done = 0
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("{"):
            yield Outcome(**json.loads(line))
            done += 1
    if done < len(PRODUCTS):
        kernel, m, n, k, dtype, layout = PRODUCTS[done]
        yield Outcome(kernel, f"{m}x{n}x{k} {dtype} {layout}", "fail", why)


def _run() -> Iterator[Outcome]:
    import torch

    from tritonmm import gpu as gpus
    from tritonmm.autotune.measuring import space, verify
    from tritonmm.plan import INTERPRETED, plan_for
    from tritonmm.selection import choose

    gpu = gpus.default()
    for kernel, m, n, k, dtype, layout in PRODUCTS:
        problem = space.problem(m, n, k, dtype=dtype, layout=layout, **GROUPS.get(kernel, {}))
        named = f"{m}x{n}x{k} {dtype} {layout}"
        try:
            config = choose(problem, gpu, kernel)
            if INTERPRETED:
                ratio = verify.interpreted(problem, config)
            else:
                device = torch.device("cuda", torch.cuda.current_device())
                ratio = verify.Check(problem, device).error_ratio(plan_for(problem, config, device))
        except ValueError as error:
            yield Outcome(kernel, named, "none", str(error).rpartition(": ")[2])
            continue
        right, bits = (True, "") if INTERPRETED or gpu.capability != 90 else _bits(problem, gpu, kernel, device)
        said = f"{ratio:.2f} of the error that rounding allows{bits}"
        yield Outcome(kernel, named, "pass" if ratio <= 1 and right else "fail", said)


def _bits(problem, gpu, kernel: str, device) -> tuple[bool, str]:
    """Whether a family's bits with invariant accumulation are the model's, and what to say of them; "" if unknown."""
    from tritonmm.autotune.measuring import space
    from tritonmm.plan import plan_for
    from tritonmm.selection import choose

    if problem.ragged:  # a group's bits are those of a GEMM of its own, which others here have
        return True, ""
    invariant = replace(problem, accumulation="invariant")
    try:
        config = choose(invariant, gpu, kernel)
    except ValueError:  # the family has no invariant accumulation
        return True, ""
    a, b, out = space.operands(invariant, device)
    space.fill(a)
    space.fill(b)
    scales = space.scales(invariant, device)
    plan_for(invariant, config, device)(a, b, out, **({"scales": scales} if scales else {}))
    found = verified(invariant, a, b, out, scales)
    return (True, "") if found is None else (bool(found), f"; {found}")


def verified(problem, a, b, out, scales):
    """What `accumulation.verify` says of a result; None if it has no model of such a GEMM."""
    from tritonmm import accumulation

    scale_a, scale_b = scales or (None, None)
    if scale_a is None and scale_b is not None:
        scale_b = scale_b.t()  # of 8-bit weights: a row for each row of the weights
    try:
        return accumulation.verify(
            a, b, out, scale_a=scale_a, scale_b=scale_b, precision=problem.precision, samples=SAMPLES
        )  # fmt: skip
    except NotImplementedError:
        return None


if __name__ == "__main__":
    for outcome in _run():
        print(json.dumps(asdict(outcome)), flush=True)
