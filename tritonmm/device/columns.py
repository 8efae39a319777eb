"""Cuts a block along its columns without moving data."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def halve_columns(x, CTAS: gl.constexpr):
    """The left and the right half of the columns of each of CTAS CTAs; no data moves."""
    ROWS: gl.constexpr = x.shape[0]
    HALF: gl.constexpr = x.shape[1] // 2
    if CTAS == 1:
        return x.reshape(ROWS, 2, HALF).permute(0, 2, 1).split()
    else:  # the outermost part of the columns is the CTA's number
        left, right = x.reshape(ROWS, CTAS, 2, HALF // CTAS).permute(0, 1, 3, 2).split()
        return left.reshape(ROWS, HALF), right.reshape(ROWS, HALF)


@gluon.jit
def split_columns(x, PIECES: gl.constexpr, CTAS: gl.constexpr):
    """x cut along each CTA's columns into PIECES (a power of two), from left to right; no data moves."""
    pieces = (x,)
    for _ in gl.static_range(PIECES.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(pieces)):
            halves += halve_columns(pieces[i], CTAS)
        pieces = halves
    return pieces
