"""The device side of `tritonmm.orders`: launch index -> output tile, inside a kernel.

The arithmetic is that of `orders`, on scalars. ORDER and ALONG are an order's name and axis, or its aspect;
`factors`, a tuple, are run-time values, so that a sweep over them compiles once; those of `orders.Dies` are the dies,
the chunk and the factors of the inner order. Orders without a closed form are read from `table`, one int32 an index,
the linear number m * tiles_n + n of the tile. Overflow programs get a tile whose m or n is too large for the grid, and
never a negative one: an entry of a table that is no tile's number is overflow, too. Written without anything but
integer arithmetic and one load, so that Gluon can compile it too.
"""

import triton
import triton.language as tl


@triton.jit
def swizzle_merge(i, rows, cols, factors):
    row = 0
    col = 0
    for j in tl.static_range(len(factors)):
        f = tl.minimum(factors[j], rows)  # the same map, and f * cols stays within int32
        start = i // (f * cols) * f
        i = i - start * cols
        height = tl.minimum(f, rows - start)
        row, col = col, row + start
        rows, cols = cols, height
    row = row + i // cols
    col = col + i % cols
    if len(factors) % 2 == 1:
        row, col = col, row
    return row, col


@triton.jit
def serpentine(i, rows, cols, factor):
    f = tl.minimum(factor, rows)
    start = i // (f * cols) * f
    height = tl.minimum(f, rows - start)
    pos = i - start * cols
    pos = tl.where(start // f % 2 == 1, height * cols - 1 - pos, pos)
    return start + pos % height, pos // height


@triton.jit
def split_merge(i, rows, cols, factor):
    group = i // (cols * factor)
    pos = i - group * (cols * factor)
    return group * factor + pos % factor, pos // factor


@triton.constexpr_function
def sides(aspect):
    """Height and width of a tile, from "2x1"."""
    return [int(side) for side in aspect.split("x")]


@triton.constexpr_function
def row_width(m, height, width):
    """Tiles of row m, a constant, of a triangle."""
    return -(-(m + 1) * height // width)


@triton.jit
def triangle_width(m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Tiles of row m of a triangle."""
    return ((m + 1) * HEIGHT + (WIDTH - 1)) // WIDTH


@triton.jit
def triangle_above(m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Tiles of all rows above m: whole rounds of WIDTH rows, and the rest."""
    rounds = m // WIDTH
    rest = m - rounds * WIDTH
    tiles = rounds * (rounds - 1) // 2 * (HEIGHT * WIDTH) + rounds * HEIGHT * rest
    for j in tl.static_range(WIDTH):
        tiles += rounds * row_width(j, HEIGHT, WIDTH)
        if j < WIDTH - 1:
            tiles += tl.where(rest > j, row_width(j, HEIGHT, WIDTH), 0)
    return tiles


@triton.jit
def triangular(i, tiles_m, factors, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The row comes from a square root in fp32, which integers correct; `orders.Triangular` says what follows."""
    i = tl.cast(i, tl.int64)  # as are products of tile numbers
    SLOPE: tl.constexpr = (HEIGHT + WIDTH - 1) / (2 * HEIGHT)
    m = (tl.sqrt(SLOPE * SLOPE + 2.0 * WIDTH / HEIGHT * i.to(tl.float32)) - SLOPE).to(tl.int64)
    m = tl.maximum(m, 0)
    while triangle_above(m, HEIGHT, WIDTH) > i:  # fp32 may be off by some rows
        m -= 1
    while triangle_above(m + 1, HEIGHT, WIDTH) <= i:
        m += 1
    start = m // factors[0] * factors[0]
    pos = i - triangle_above(start, HEIGHT, WIDTH)
    height = tl.minimum(tl.cast(factors[0], tl.int64), tiles_m - start)
    shared = triangle_width(start, HEIGHT, WIDTH)
    row, col = start, tl.cast(0, tl.int64)
    if pos < height * shared:
        col, row = swizzle_merge(pos, shared, height, factors[1:])
        row += start
    else:
        col = pos - height * shared
        beyond = triangle_width(row, HEIGHT, WIDTH) - shared
        while col >= beyond:
            col -= beyond
            row += 1
            beyond = triangle_width(row, HEIGHT, WIDTH) - shared
        col += shared
    return row.to(tl.int32), col.to(tl.int32)


@triton.constexpr_function
def inner_name(order):
    """The order that dies divide, from "dies/swizzle-merge"; any other as it is."""
    return order.removeprefix("dies/")


@triton.jit
def place(i, tiles, dies, chunk):
    """The place in the inner order of launch index i, as in `orders.Dies`. No value is above `tiles`."""
    pos = i // dies
    first = pos // chunk * chunk
    rest = tiles - first * dies
    share = tl.minimum(rest // dies, chunk)
    more = tl.where(rest // dies < chunk, rest % dies, 0)
    die = i - pos * dies
    return first * dies + die * share + tl.minimum(die, more) + pos - first


@triton.jit
def tile_at(i, tiles_m, tiles_n, table, factors, ORDER: tl.constexpr, ALONG: tl.constexpr):
    """The tile (m, n) of launch index i; outside of the grid where i is overflow."""
    INNER: tl.constexpr = inner_name(ORDER)
    if INNER != ORDER:
        i = place(i, tiles_m * tiles_n, factors[0], factors[1])
        factors = factors[2:]
    rows, cols = tiles_m, tiles_n
    if ALONG == "n":
        rows, cols = tiles_n, tiles_m
    if INNER == "row-major":
        m, n = i // cols, i % cols
    elif INNER == "column-major":
        m, n = i % rows, i // rows
    elif INNER == "split-merge":
        m, n = split_merge(i, rows, cols, factors[0])
    elif INNER == "swizzle-merge":
        m, n = swizzle_merge(i, rows, cols, factors)
    elif INNER == "serpentine":
        m, n = serpentine(i, rows, cols, factors[0])
    elif INNER == "triangular":
        HEIGHT: tl.constexpr = sides(ALONG)[0]
        WIDTH: tl.constexpr = sides(ALONG)[1]
        m, n = triangular(i, tiles_m, factors, HEIGHT, WIDTH)
    else:
        tl.static_assert(INNER == "table", "unknown order")
        linear = tl.load(table + i)
        m, n = linear // cols, linear % cols
        # Overflow is in a row of the grid, only its columns are not there: loads of A need no case of their own.
        inside = (linear >= 0) & (m < rows)
        m, n = tl.where(inside, m, 0), tl.where(inside, n, cols)
    if ALONG == "n":
        m, n = n, m
    return m, n
