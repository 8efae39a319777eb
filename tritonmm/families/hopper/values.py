"""What the functions of the Hopper kernel pass to each other: named device values, made once in `kernel.gemm`."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper.tma import tensor_descriptor

from tritonmm.device.gluon_compat import aggregate


@aggregate
class Operands:
    """TMA descriptors of A and B, [batch, rows, columns]."""

    a: tensor_descriptor
    b: gl.tuple  # one for each N-subtile
    ragged_a: tensor_descriptor  # of boxes of ragged tiles, or None


@aggregate
class Pipeline:
    """Shared buffers and barriers of `num_stages` K steps; `device/pipeline.py` has the protocol."""

    a: gl.shared_memory_descriptor  # [stages * consumers_m, *a_block]
    b: gl.tuple  # for each N-subtile, [stages * consumers_n, *b_block]
    empty: gl.shared_memory_descriptor  # a barrier for each stage: its buffers may be overwritten
    full: gl.shared_memory_descriptor  # a barrier for each stage: its operands have arrived
    scales: gl.tuple  # of A's rows, [stages * consumers_m, rows], and of B's columns, [stages, col_scales]; or ()


@aggregate
class Scheduler:
    """The work items of a launch and the order of its tiles; `scheduler.py` has the functions."""

    items: gl.tensor  # whole tiles, and parts of split tiles; `scheduler.work_items` says how many are computed
    whole: gl.tensor  # items that are whole tiles, the first ones
    splits: gl.tensor  # parts of each other tile
    launched: gl.tensor  # indices of the tile order for one batch
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    steps: gl.tensor  # K steps of a tile
    table: gl.tensor  # the order as a table, or None
    factors: gl.tuple  # of the order
    skip: gl.tensor  # one int32: nothing is computed if it is not 0; or None


@aggregate
class Output:
    """Where the output is, and how it is written."""

    desc: tensor_descriptor  # of blocks [1, rows, piece_cols], or None without TMA stores
    pointer: gl.tensor
    stride_b: gl.tensor
    stride_m: gl.tensor
    stride_n: gl.tensor
    m: gl.tensor  # rows from here on are not written
    n: gl.tensor
    buffers: gl.shared_memory_descriptor  # [consumers * out_buffers, *out_block]
    mirrored_desc: tensor_descriptor  # of blocks [1, piece_cols, rows], for symmetric products; or None
    mirrored_buffers: gl.shared_memory_descriptor  # [consumers, *mirrored_block]


@aggregate
class Scales:
    """fp32 scales of A and B, read at their strides along rows, columns and groups of K."""

    a: gl.tensor
    stride_am: gl.tensor
    stride_ak: gl.tensor
    b: gl.tensor
    stride_bn: gl.tensor
    stride_bk: gl.tensor


@aggregate
class Addends:
    """What the epilogue multiplies by and adds."""

    alpha: gl.tensor
    beta: gl.tensor
    bias: gl.tensor  # [n], or None
    c: gl.tensor  # [batch, m, n], or None
    stride_cb: gl.tensor
    stride_cm: gl.tensor
    stride_cn: gl.tensor
    scales: Scales


@aggregate
class Workspace:
    """Memory in which programs cooperate, see `device/split_k.py`; either may be None."""

    sums: gl.tensor
    flags: gl.tensor


@aggregate
class Claim:
    """The tile that this SM is assigned, and the one that the claim warp takes; see `claim.py`."""

    assigned: gl.tensor
    buffer: gl.shared_memory_descriptor  # [32], all of them the claimed tile
    ready: gl.shared_memory_descriptor  # the barrier of `buffer`
