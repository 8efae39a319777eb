"""The parts of Gluon that are spelled differently from Triton 3.6 to 3.9, under one name each.

Device code imports them from here and is then the same source under every release. What only
clusters need is None where a release lacks it; `Config.fits` refuses them there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.core import _aggregate, base_value

tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""tma_load(desc, at, bar, buf, pred) copies the block of `desc` at coordinates `at` into `buf`, if `pred`; `bar` counts
its bytes."""

tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""tma_store(desc, at, buf) copies `buf` into the block of `desc` at coordinates `at`; coordinates outside are not
written."""

copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Copies from addresses into a shared buffer, by cp.async."""

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
"""Waits for all threads of the partition."""


def aggregate(cls):
    """Makes a class of named device values of the annotated fields; its constructor takes all of them by name.

    An annotation says what a field usually is, and is not checked: a field may also be a constexpr, such as None. Data
    only: methods do not work under every Triton.
    """
    names = tuple(cls.__annotations__)

    def init(self, **fields):
        for name in names:
            setattr(self, name, fields.pop(name))
        if fields:
            raise TypeError(f"{cls.__name__} has no fields {sorted(fields)}; it has {names}")

    init.__triton_builtin__ = True  # Triton need not digest it: kernels' static arguments digest this file
    cls.__init__ = init
    cls.__annotations__ = dict.fromkeys(names, base_value)
    return _aggregate(cls)


@gluon.jit
def keep_order():
    """Keeps the compilers from moving loads of shared memory across this line. It costs a warp no more than a slot."""
    gl.inline_asm_elementwise("bar.warp.sync -1; // $0", "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def wait_for_previous_grid():
    """Waits for the grids that this one was launched to follow: all their writes are visible afterwards."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def let_next_grid_start():
    """Lets the next grid be launched once all programs have come here; it must wait for this one before it reads.

    Call it after `wait_for_previous_grid` in the same partition; `device/pdl.py` says why.
    """
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r,~{memory}", [], gl.int32, is_pure=False, pack=1
    )


inline_asm = getattr(gl, "inline_asm", None)
"""A block of PTX a thread, which may take shared buffers and barriers by address."""

if inline_asm is None:
    mma_f64 = mma_v2
else:

    @gluon.constexpr_function
    def _mma_f64(outputs, inputs):
        """The PTX of one thread: its blocks of 16 x 8 x 16, whose sums and operands lie row after row of blocks."""
        sums, (a, b, _) = outputs[0], inputs
        across = len(b) // 4
        lines = []
        for i in range(len(sums) // 4):
            row, col = divmod(i, across)
            block = sums[4 * i : 4 * i + 4]
            blocks = (block, a[8 * row : 8 * row + 8], b[4 * col : 4 * col + 4], block)
            operands = ", ".join("{" + ", ".join(registers) + "}" for registers in blocks)
            lines.append(f"mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {operands};")
        return "\n".join(lines)

    @gluon.constexpr_function
    def _mma_f64_constraints(shape, layout):
        rows, cols = (
            size // (unit * warps) for size, unit, warps in zip(shape, (16, 8), layout.warps_per_cta, strict=True)
        )
        sums = 4 * rows * cols
        return ",".join(["=d"] * sums + ["d"] * (8 * rows + 4 * cols) + [str(i) for i in range(sums)])

    @gluon.jit
    def mma_f64(x, y, acc):
        """acc + x @ y in blocks of 16 x 8 x 16. 3.9's own product has blocks of 8 x 8 x 4 only."""
        CONSTRAINTS: gl.constexpr = _mma_f64_constraints(acc.shape, acc.type.layout)
        return inline_asm(_mma_f64, CONSTRAINTS, [x, y, acc], acc.type, is_pure=True)


cluster_barrier = getattr(getattr(hopper, "cluster", None), "barrier", None)
"""Waits for all threads of the cluster."""


@gluon.jit
def unhoisted(x):
    """x, int32, computed where it is used: LLVM would hold what follows from it in registers all through the loop."""
    return gl.inline_asm_elementwise("// $0", "=r,0", [x], gl.int32, is_pure=False, pack=1)


@gluon.jit
def computed(x):
    """x, fp32, computed before what follows: LLVM would put it off until after the next wgmma, and hold two parts."""
    return gl.inline_asm_elementwise("// $0", "=f,0", [x], gl.float32, is_pure=False, pack=1)
