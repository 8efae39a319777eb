"""The counts of a launch in closed form: for the orders that cut the grid into groups and walk each column by column.

A grid of `rows` x `cols` tiles is cut into groups of f rows, and P programs are a wave. Then, in tiles,

    a wave meets        the f rows of its group, and those of the next where a border lies in it
                        (P - gcd(P, f)) / f + 1 columns on average, at most all of them
    a row is wanted     by every wave that meets its group, one after the other
    a column is wanted  once a group, and by the next wave too where a border of waves cuts it

so a row comes again after what a wave touches, and a column after all columns and the rows of two groups; with a
serpentine the latter grows with the distance from the turn. Each is a sum over a few kinds of reuse: no wave and no
program is looked at. Rows and columns count as equally large: those at the edge of the output are not told apart.
"""

import math
from typing import NamedTuple

from tritonmm.config import Config
from tritonmm.gpu import Gpu
from tritonmm.model.l2_laws import (
    GROUP,
    Constants,
    Counts,
    concurrent,
    held_bytes,
    scaled,
    staggered,
    sum_bytes,
    written_share,
)
from tritonmm.orders import ColumnMajor, Order, RowMajor, Serpentine, SplitMerge, SwizzleMerge
from tritonmm.problem import Problem


def groups(order: Order) -> tuple[int, str] | None:
    """(factor, cut axis) of an order that is a walk through groups, None of any other.

    The overflow programs of SplitMerge read nothing: what is left is the walk of SwizzleMerge. That they bring
    persistent programs out of step is left out.
    """
    if isinstance(order, (SwizzleMerge, SplitMerge, Serpentine)):
        return (order.factors[0], order.along) if len(order.factors) == 1 else None
    if isinstance(order, RowMajor):
        return 1, "m"
    return (1, "n") if isinstance(order, ColumnMajor) else None


def counted(problem: Problem, config: Config, gpu: Gpu, constants: Constants) -> Counts:
    """The counts of a launch in an order that `groups` knows."""
    known = groups(config.order)
    if known is None:
        raise ValueError(f"{config.order} is walked in no groups")
    factor, along = known
    tiles_m, tiles_n = config.tiles(problem)
    whole_a, whole_b = problem.m * problem.element_bytes, problem.n * problem.b_element_bytes
    if factor >= (tiles_m if along == "m" else tiles_n):  # one group is row-major along the other axis
        factor, along = 1, "n" if along == "m" else "m"
    rows, row, cols, col = tiles_m, whole_a / tiles_m, tiles_n, whole_b / tiles_n
    if along == "n":
        rows, row, cols, col = cols, col, rows, row
    tiles, passes = tiles_m * tiles_n, problem.batch * config.split_k
    programs = min(concurrent(problem, config, gpu), tiles * passes)
    walk = _Walk(
        rows=rows,
        cols=cols,
        factor=factor,
        turns=isinstance(config.order, Serpentine),
        passes=passes,
        programs=programs,
        waves=-(-tiles * passes // programs),
        row_bytes=row,
        col_bytes=col,
        k=problem.k / config.split_k,
        out_bytes=problem.m * problem.n / tiles * sum_bytes(problem, config) * written_share(gpu, constants),
        held=held_bytes(gpu, constants),
        stagger=staggered(config, constants),
        constants=constants,
    )
    found = walk.counted()
    wanted_rows = found.rows
    wanted_cols = min(tiles, max(cols, found.cols))
    missed = (wanted_rows * row + wanted_cols * col - found.kept) * walk.k
    of_rows = tiles * row, min(found.row_pairs, tiles - wanted_rows) * row, found.near_rows * row, wanted_rows * row
    of_cols = tiles * col, min(found.col_pairs, tiles - wanted_cols) * col, found.near_cols * col, wanted_cols * col
    a, b = (of_rows, of_cols) if along == "m" else (of_cols, of_rows)
    exact_a, exact_b = passes * tiles_n * whole_a, passes * tiles_m * whole_b
    return Counts(scaled(exact_a, *a), scaled(exact_b, *b), missed * passes, walk.waves)


class _Found(NamedTuple):
    """Of one pass: rows and columns wanted, summed over waves; pairs of SMs that want the same; rows and columns
    wanted, summed over sets of neighbouring SMs; bytes a unit of K that are wanted again and still there."""

    rows: float
    cols: float
    row_pairs: float
    col_pairs: float
    near_rows: float
    near_cols: float
    kept: float


class _Walk(NamedTuple):
    """A launch of `passes` walks over rows x cols tiles, by waves of `programs`.

    row_bytes, col_bytes: of a panel, a unit of K; out_bytes: of a finished tile, as room; held: what L2 holds;
    stagger: the share of a tile's time over which the programs of a wave begin.
    """

    rows: int
    cols: int
    factor: int
    turns: bool
    passes: int
    programs: int
    waves: int
    row_bytes: float
    col_bytes: float
    k: float
    out_bytes: float
    held: float
    stagger: float
    constants: Constants

    def counted(self) -> _Found:
        """Sums over the groups that are whole and the last one, if it is lower."""
        cols, programs, passes = self.cols, self.programs, self.passes
        tiles = self.rows * cols
        part = min(programs, tiles)  # of a wave, in one pass
        full, low = divmod(self.rows, self.factor)
        group = self.factor * cols

        # Waves that meet a pass; `ends` of them are not whole: the last of a single pass, or first and last.
        met: float = self.waves
        ends: float = 1
        if passes > 1:
            met = (tiles - math.gcd(tiles, programs)) / programs + 1
            ends = 2 * min(met - 1, 1 - math.gcd(tiles, programs) / programs)
        crowd = met * passes / self.waves  # passes that a wave meets

        # Borders of groups, of which some are borders of waves too: `open` is the share of the others.
        borders = full + (low > 0) - 1
        inside = borders - borders // (programs // math.gcd(group, programs))
        open_ = inside / borders if borders else 0.0
        met_low = 0.0
        if low:
            met_low = self.waves - full * group // programs if passes == 1 else low * cols / programs + open_
        wave_rows = (met + inside) / met * self.rows / (borders + 1) * crowd

        fresh = float(cols)
        found_rows = found_cols = row_pairs = col_pairs = near_rows = near_cols = kept = 0.0
        for height, count, seen in ((self.factor, full, met + inside - met_low), (low, 1, met_low)):
            if not height:
                continue
            region = height * cols * count
            share, crossed = region / tiles, inside * count / (borders + 1)
            wide = min(cols, (part - math.gcd(part, height)) / height + 1)  # columns of a wave

            # A row is wanted by wave after wave until its group ends.
            uses = seen * min(height, part)
            if part > height:  # the part of a wave beyond a border may be shorter than a column
                uses -= crossed * height * max(0, height - math.gcd(height * cols, programs)) / programs
            uses = min(max(uses, height * count), region)
            steps = max(0.0, seen - count) if part >= height else 0.0  # of waves within a group
            if part < height:
                near = self._share(height, part / height + 1, height)
            else:
                near = self._near(height, wide * crowd, part, steps / count, open_, wave_rows)
            found_rows += uses
            kept += (uses - height * count) * self.row_bytes * near

            # A column is wanted by two waves where their border cuts it, and again in the next group.
            uses = (met - ends) * wide
            if passes > 1:
                uses += ends * _columns_of_a_part(part, height, cols)
            uses *= share
            turns = self.turns and part < 2 * height * cols
            if turns:
                uses -= self._seen_twice(height, part, uses, crossed)
            if passes == 1 and height == (low or self.factor):  # the last wave
                uses += min(cols, -(-(tiles - (self.waves - 1) * programs) // height))
            cut = steps * (1 - math.gcd(part, height) / height) if wide < cols else 0.0
            first = min(fresh, uses - cut)
            fresh -= first
            again = uses - cut - first
            if not again:
                far = 0.0
            elif turns:
                far = self._after_turn(height, part)
            elif wide >= cols:
                apart = 1 - self.stagger
                far = self._share(apart * max(wave_rows, height), cols * crowd, apart * part)
            else:
                far = self._after_group(height, wide, part)
            found_cols += uses
            kept += (cut * near + again * far) * self.col_bytes

            # Programs 2j and 2j + 1 are in one column, or in one row where a group is one.
            col_pairs += region / 2 * (_run(height, programs) if cols > 1 else 1.0)
            if height == 1:
                row_pairs += region / 2 * _run(cols, programs)
            rows_of_a_set, cols_of_a_set = self._nearby(height, min(GROUP, part))
            near_rows += region * rows_of_a_set
            near_cols += region * cols_of_a_set
        return _Found(found_rows, found_cols, row_pairs, col_pairs, near_rows, near_cols, kept)

    def _nearby(self, height: int, sms: int) -> tuple[float, float]:
        """Rows and columns that `sms` neighbours in groups of `height` want, each once, a neighbour."""
        group = height * self.cols
        if sms >= group:
            met = (sms - math.gcd(sms, group)) / group + 1
            return min(self.rows, met * height) / sms, self.cols / sms
        rows, cols = min(height, sms), min(self.cols, (sms - math.gcd(sms, height)) / height + 1)
        # Across the border of two groups they want rows of both.
        crossing = (sms - math.gcd(sms, group)) / group if height < self.rows else 0.0
        both = 2 * height - height * height / sms if height < sms else sms
        return (rows + crossing * (both - rows)) / sms, cols / sms

    def _share(self, rows: float, cols: float, tiles: float) -> float:
        """Share that is still there after rows, columns and finished tiles."""
        touched = (rows * self.row_bytes + cols * self.col_bytes) * self.k + tiles * self.out_bytes
        return _kept_at(touched, self.held, self.constants)

    def _mean_share(self, rows: float, cols: float, tiles: float, swing: float) -> float:
        """Mean of `_share` over rows that are up to `swing` / 2 more or less."""
        mean = (rows * self.row_bytes + cols * self.col_bytes) * self.k + tiles * self.out_bytes
        swing *= self.row_bytes * self.k / 2
        return _kept(mean - swing, mean + swing, self.held, self.constants)

    def _near(self, height: int, cols: float, part: float, steps: float, open_: float, wave_rows: float) -> float:
        """Share of what a wave left that the next one finds, in a group of `steps` such steps.

        At a step from the wave that a border lies in the rows of the group before are touched too, those less the
        deeper a panel is; at a step to the next such wave those of the next group, the more. Of staggered programs the
        last of a wave are at a panel so much nearer to the next wave, and as much less of the two waves is touched.
        """
        apart = 1 - self.stagger
        cols, part = (apart * cols if cols < self.cols else cols), apart * part
        within = self._share(height, cols, part)
        if not open_ or not steps:
            return within
        others = apart * max(min(self.factor, self.rows - height), wave_rows - height)
        both = self._share(height + others, cols, part)
        one = self._mean_share((1 + apart / 2) * height, cols, part, apart * height)
        if steps <= 1:
            met = both
        elif steps <= 2:
            met = (both * (2 - steps) + one * 2 * (steps - 1)) / steps
        else:
            met = (one * 2 + within * (steps - 2)) / steps
        return open_ * met + (1 - open_) * within

    def _after_group(self, height: int, cols: float, part: int) -> float:
        """Share of the columns, `cols` of which are a wave's, that the next group finds.

        It comes to a column after a whole group; if it is the last and lower, the sooner the later the column is.
        """
        whole = self.factor * self.cols
        if height == self.factor:
            return self._after(whole, height, cols, part)
        least = height * self.cols
        between = self._after((whole + least) / 2, height, cols, part)
        return (self._after(whole, height, cols, part) + between + between + self._after(least, height, cols, part)) / 4

    def _after(self, distance: float, height: int, cols: float, part: int) -> float:
        """Share of a column found `distance` tiles later: so many waves, or one more.

        So many waves later, `more` of the columns are wanted by only one of the two waves: of those, fewer are touched
        between the two uses if programs are staggered.
        """
        rows = min(self.rows, self.factor + height)
        age = max(1, int(distance / part))
        more = max(0.0, distance / part - age)
        between = age - self.stagger
        found = (1 - more) * self._share(rows, min(self.cols, age * cols) - more * self.stagger * cols, between * part)
        return found + more * self._share(rows, self.cols, (between + 1) * part) if more else found

    def _after_turn(self, height: int, part: int) -> float:
        """Share of the columns that a serpentine finds on its way back: the further from the turn, the fewer."""
        begin = min(part, height * self.cols) / (4 * self.factor)  # the wave that turns has those before
        cols = begin + part / (2 * self.factor)
        rows = 2 * self.factor * self.row_bytes * self.k
        column, out = self.col_bytes * self.k, 2 * self.factor * self.out_bytes
        least, most = rows + cols * column + begin * out, rows + self.cols * (column + out)
        return _kept(least, most, self.held, self.constants)

    def _seen_twice(self, height: int, part: int, uses: float, crossed: float) -> float:
        """Columns, of `uses`, that waves in which a serpentine turns want on both sides of the turn."""
        group = height * self.cols
        if part < group:
            return crossed * part / height / 4
        whole = part / group - 1  # share of the waves that have a whole group in them
        return uses * (1 - whole) * (0.5 - part / group / 4)


def _columns_of_a_part(programs: int, height: int, cols: int) -> float:
    """Columns that a part of a wave meets, on average over its length."""
    whole = programs / height
    return min(cols, whole / 2 + 1 - 1 / height if whole <= cols else cols - cols * cols / (2 * whole))


def _run(length: int, programs: int) -> float:
    """Share of the pairs of programs that are in one run, of runs of `length` tiles."""
    return 1.0 if length % 2 == 0 and programs % 2 == 0 else 1 - 1 / length


def _kept_at(touched: float, held: float, constants: Constants) -> float:
    """`survives` of one number, without NumPy, whose calls take longer."""
    if not held:
        return 0.0
    gone = 0.5 + (touched / held - 1) / (2 * constants.spread)
    return 1.0 if gone <= 0 else 0.0 if gone >= 1 else 1 - gone


def _kept(least: float, most: float, held: float, constants: Constants) -> float:
    """The mean of `survives` while the touched bytes go evenly from `least` to `most`."""
    if not held:
        return 0.0
    # In units of the ramp, that begins at 0 and ends at 1.
    begin = 0.5 + (least / held - 1) / (2 * constants.spread)
    end = 0.5 + (most / held - 1) / (2 * constants.spread)
    if end - begin < 1e-9:
        return _kept_at(least, held, constants)
    return 1 - (_ramp(end) - _ramp(begin)) / (end - begin)


def _ramp(x: float) -> float:
    """The integral of min(1, max(0, x))."""
    return 0.0 if x < 0 else x * x / 2 if x < 1 else x - 0.5
