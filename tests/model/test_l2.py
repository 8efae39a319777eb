"""L2 traffic: the simulator against a brute-force LRU, `l2.of` against the simulator, laws of any cache, counters."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from l2_lockstep import LOCKSTEP

from tritonmm import gpu as gpus
from tritonmm import orders
from tritonmm.config import Config
from tritonmm.model import constants, l2, l2_groups, l2_laws, l2_simulator, l2_waves
from tritonmm.orders import ColumnMajor, Hilbert, Morton, RowMajor, Serpentine, SplitMerge, SwizzleMerge, Table
from tritonmm.problem import Problem

H200 = gpus.spec("h200")
FITTED = constants.of(H200).l2
ORDERS = [
    RowMajor(),
    ColumnMajor(),
    SplitMerge(4),
    SplitMerge(3, along="n"),
    SwizzleMerge(3),
    SwizzleMerge(4, 2),
    SwizzleMerge(2, along="n"),
    Serpentine(2),
    Morton(),
    Hilbert(),
]
ROW_MAJOR = RowMajor()
LARGE = Problem(16384, 16384, 4096)


def small_gpu(l2_bytes: int, sms: int = 5) -> gpus.Gpu:
    return replace(H200, sms=sms, l2_bytes=l2_bytes, l2_partitions=1)


def small_config(order=ROW_MAJOR, persistent=True, **more) -> Config:
    return Config(block_m=16, block_n=32, block_k=16, persistent=persistent, order=order, **more)


def large_config(order) -> Config:
    return Config(block_m=128, block_n=256, num_stages=4, persistent=True, order=order)


def shuffled(tiles_m: int, tiles_n: int, seed: int = 0) -> Table:
    tiles = np.array(list(itertools.product(range(tiles_m), range(tiles_n))))
    return Table(np.random.default_rng(seed).permutation(tiles))


def compulsory_reads(p: Problem) -> int:
    return p.batch * (p.m + p.n) * p.k * p.element_bytes


def reads_without_cache(p: Problem, c: Config) -> int:
    """Every operand of every tile."""
    tiles_m, tiles_n = c.tiles(p)
    return p.batch * (tiles_n * p.m + tiles_m * p.n) * p.k * p.element_bytes


def waves_by_hand(p: Problem, c: Config, gpu: gpus.Gpu):
    """Lists of (slot, batch, m, n), one a wave, by walking every program."""
    tiles = c.tiles(p)
    programs = l2.concurrent(p, c, gpu)
    launched = c.order.launched(*tiles)
    launch = [(i // launched, c.order.tile(i % launched, *tiles)) for i in range(launched * p.batch)]
    if c.persistent:
        walks = [[x for x in launch[program::programs] if x[1]] for program in range(programs)]
        rounds = itertools.zip_longest(*walks)
    else:
        real = [x for x in launch if x[1]]
        rounds = [real[i : i + programs] for i in range(0, len(real), programs)]
    return [[(slot, x[0], *x[1]) for slot, x in enumerate(wave) if x] for wave in rounds]


def traffic_by_hand(p: Problem, c: Config, gpu: gpus.Gpu) -> tuple[int, int]:
    """(DRAM reads, L2 reads) by definition: a slice hits if all that was touched since its last use, it
    and the other slices of its step included, fits the capacity."""
    capacity = gpu.l2_bytes / gpu.l2_partitions
    steps = -(-p.k // c.block_k)
    last, size = {}, {}
    now = dram = asked = 0
    for wave in waves_by_hand(p, c, gpu):
        for step in range(steps):
            now += 1
            depth = min(c.block_k, p.k - step * c.block_k) * p.element_bytes
            wanted = {}
            for slot, batch, m, n in wave:
                for panel, extent in (
                    (("a", batch, m, step), min(c.block_m, p.m - m * c.block_m)),
                    (("b", batch, n, step), min(c.block_n, p.n - n * c.block_n)),
                ):
                    size[panel] = extent * depth
                    wanted.setdefault(panel, set()).add(slot // 2)
            before = {panel: last.get(panel) for panel in wanted}
            last.update(dict.fromkeys(wanted, now))
            for panel, pairs in wanted.items():
                asked += len(pairs) * size[panel]
                since = before[panel]
                if since is None or sum(size[x] for x in last if last[x] >= since) > capacity:
                    dram += size[panel]
        now += 1
        for _, batch, m, n in wave:
            tile = ("c", batch, m, n)
            extent = min(c.block_m, p.m - m * c.block_m) * min(c.block_n, p.n - n * c.block_n)
            last[tile], size[tile] = now, extent * p.out_element_bytes
    return dram, asked


@pytest.mark.parametrize("capacity", [0, 9_001, 14_001, 20_001, 27_001, 40_001, 10**9])
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "plain"])
@pytest.mark.parametrize("order", [*ORDERS, shuffled(7, 5)], ids=str)
def test_equals_brute_force_lru(order, persistent, capacity):
    p, c = Problem(105, 150, 50), small_config(order, persistent)
    gpu = small_gpu(capacity, sms=5 if persistent else 1)
    found = l2_simulator.simulate(p, c, gpu, LOCKSTEP)
    assert (found.dram_read_bytes, found.l2_read_bytes) == traffic_by_hand(p, c, gpu), f"{p}, {c}, {capacity}: {found}"


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 130),
    n=st.integers(1, 200),
    k=st.integers(0, 70),
    batch=st.integers(1, 3),
    sms=st.integers(1, 9),
    capacity=st.integers(0, 30_000).map(lambda half: 2 * half + 1),  # bytes touched are even: none is just the capacity
    persistent=st.booleans(),
    order=st.sampled_from(ORDERS),
)
def test_equals_brute_force_lru_on_any_problem(m, n, k, batch, sms, capacity, persistent, order):
    p, c, gpu = Problem(m, n, k, batch=batch), small_config(order, persistent), small_gpu(capacity, sms)
    found = l2_simulator.simulate(p, c, gpu, LOCKSTEP)
    assert (found.dram_read_bytes, found.l2_read_bytes) == traffic_by_hand(p, c, gpu)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 500),
    n=st.integers(1, 500),
    k=st.integers(1, 200),
    batch=st.integers(1, 3),
    sms=st.integers(1, 40),
    capacity=st.integers(0, 200_000),
    persistent=st.booleans(),
    order=st.sampled_from(ORDERS),
)
def test_between_compulsory_and_no_cache(m, n, k, batch, sms, capacity, persistent, order):
    p, c = Problem(m, n, k, batch=batch), small_config(order, persistent)
    found = l2.of(p, c, small_gpu(capacity, sms))
    assert compulsory_reads(p) <= found.dram_read_bytes <= found.l2_read_bytes <= reads_without_cache(p, c)
    assert 0 <= found.hit_rate <= 1
    assert found.dram_write_bytes == batch * m * n * 2


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "plain"])
@pytest.mark.parametrize("order", [*ORDERS, shuffled(63, 32)], ids=str)
def test_huge_l2_reads_everything_once(order, persistent):
    p, c = Problem(1000, 1001, 77, batch=1), small_config(order, persistent)
    assert l2.of(p, c, small_gpu(10**12)).dram_read_bytes == compulsory_reads(p)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_more_l2_never_reads_more(order):
    p, c = Problem(400, 600, 128), small_config(order)
    reads = [l2_simulator.simulate(p, c, small_gpu(size)).dram_read_bytes for size in range(0, 400_000, 10_000)]
    assert reads == sorted(reads, reverse=True)
    assert reads[0] > reads[-1], f"{order}: the capacity makes no difference: {reads}"


def test_partitions_keep_a_copy_each():
    p, c = Problem(400, 600, 128), small_config()
    whole = l2.of(p, c, small_gpu(120_000))
    size = round(120_000 / FITTED.capacity)
    halved = l2.of(p, c, replace(small_gpu(size), l2_partitions=2))
    assert halved.dram_read_bytes == pytest.approx(whole.dram_read_bytes, rel=1e-4)
    assert halved.dram_read_bytes > 1.05 * l2.of(p, c, small_gpu(size)).dram_read_bytes
    assert halved.fabric_bytes > whole.fabric_bytes == 0


@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, 2.0, 4.0])
def test_time_that_a_random_walk_is_beyond_a_distance(distance):
    walks = np.random.default_rng(0).normal(size=(20_000, 400)).cumsum(axis=1)
    assert l2_laws.time_beyond(distance) == pytest.approx((abs(walks) / 400**0.5 > distance).mean(), abs=0.01)


@pytest.mark.parametrize("factor", [1, 4, 16])
def test_drift_reads_more_without_a_sudden_onset(factor):
    p, c = Problem(8192, 8192, 8192), large_config(SwizzleMerge(factor))
    drifts = [0.0, *np.geomspace(1e-4, 10, 200)]
    reads = [l2.estimate(p, c, H200, replace(FITTED, drift=x)).dram_read_bytes for x in drifts]
    assert reads == sorted(reads)
    assert reads[1] == reads[0], "programs hardly part"
    assert reads[-1] > 1.2 * reads[0], "all are apart"
    assert np.diff(reads).max() < 0.05 * reads[0]


@pytest.mark.parametrize(("factor", "gigabytes"), [(2, 8.56), (4, 4.81), (8, 2.83), (16, 2.00), (24, 2.46)])
def test_near_the_counters_of_an_h200(factor, gigabytes):
    read = l2.traffic(16384, 16384, 4096, large_config(SwizzleMerge(factor))).dram_read_bytes / 1e9
    assert read == pytest.approx(gigabytes, rel=0.2)


def test_a_good_factor_beats_row_major():
    reads = {o: l2.of(LARGE, large_config(o), H200).dram_read_bytes for o in (RowMajor(), SwizzleMerge(16))}
    assert reads[SwizzleMerge(16)] < reads[RowMajor()] / 3


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "plain"])
def test_split_merge_without_overflow_is_swizzle_merge(persistent):
    p = Problem(16 * 12, 32 * 7, 64, batch=2)
    split, swizzle = (l2.of(p, small_config(o(4), persistent), small_gpu(20_000)) for o in (SplitMerge, SwizzleMerge))
    assert split == swizzle


def test_overflow_programs_free_their_slot_in_a_plain_launch():
    p, gpu = Problem(16 * 9, 32 * 7, 64), small_gpu(20_000, sms=1)
    overflowing = small_config(SplitMerge(4), persistent=False)
    visited = overflowing.order.visit(9, 7)
    without = replace(overflowing, order=Table(visited[visited[:, 0] >= 0]))
    assert len(visited) > 9 * 7
    assert l2_simulator.simulate(p, overflowing, gpu) == l2_simulator.simulate(p, without, gpu)


def test_a_row_more_costs_a_row():
    """Two tiles high with one row in the second: A counts 17 rows, and not 32."""
    huge, c = small_gpu(10**12), small_config()
    assert l2.of(Problem(17, 32, 16), c, huge).dram_read_bytes == (17 + 32) * 16 * 2
    assert l2.of(Problem(16, 33, 16), c, huge).dram_read_bytes == (16 + 33) * 16 * 2
    assert l2.of(Problem(16, 32, 17), c, huge).dram_read_bytes == (16 + 32) * 17 * 2
    assert l2.of(Problem(17, 33, 1), c, huge).dram_write_bytes == 17 * 33 * 2


@pytest.mark.parametrize("capacity", [0, 10**12])
def test_whole_waves_of_a_batch_add_up(capacity):
    one, many = Problem(80, 32, 48), Problem(80, 32, 48, batch=4)
    gpu = small_gpu(capacity)  # 5 tiles: a wave each
    found, single = l2.of(many, small_config(), gpu), l2.of(one, small_config(), gpu)
    assert found.dram_read_bytes == 4 * single.dram_read_bytes
    assert found.l2_read_bytes == pytest.approx(4 * single.l2_read_bytes, rel=1e-3), "later waves merge less"
    assert found.dram_write_bytes == 4 * single.dram_write_bytes


def test_k_zero_writes_and_reads_nothing():
    found = l2.traffic(100, 50, 0, small_config())
    assert (found.dram_read_bytes, found.dram_write_bytes, found.l2_read_bytes) == (0, 100 * 50 * 2, 0)
    assert found.hit_rate == 1.0


@pytest.mark.parametrize("sizes", [(0, 50, 60, 1), (50, 0, 60, 1), (50, 60, 70, 0)], ids=["m", "n", "batch"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_empty_product_moves_nothing(order, sizes):
    m, n, k, batch = sizes
    assert l2.traffic(m, n, k, small_config(order), batch=batch) == l2.Traffic(0, 0, 0)


def test_split_k_moves_partial_sums():
    p, whole, split = Problem(64, 64, 96), small_config(), small_config(split_k=3)
    held, spilled = (l2.of(p, split, small_gpu(capacity)) for capacity in (10**9, 1))
    partial = 3 * 64 * 64 * l2_laws.PARTIAL_BYTES
    assert held.dram_read_bytes == compulsory_reads(p)
    assert held.dram_write_bytes == 64 * 64 * 2
    assert spilled.dram_write_bytes == 64 * 64 * 2 + partial
    assert held.l2_read_bytes >= l2.of(p, whole, small_gpu(10**9)).l2_read_bytes / 2 + partial


def test_wide_elements_count_double():
    half, full = (l2.traffic(512, 512, 512, small_config(), dtype=d) for d in ("bf16", "fp32"))
    assert full.l2_read_bytes == pytest.approx(2 * half.l2_read_bytes, abs=1)
    assert full.dram_write_bytes == 2 * half.dram_write_bytes


def test_a_plain_launch_holds_what_an_sm_can():
    p = Problem(8192, 8192, 4096)
    assert l2.programs_per_sm(p, Config(block_m=128, block_n=256, num_stages=3), H200) == 1
    assert l2.programs_per_sm(p, Config(block_m=128, block_n=128, num_stages=3), H200) == 1  # registers
    assert l2.programs_per_sm(p, Config(block_m=64, block_n=128, num_stages=3), H200) == 2  # registers
    assert l2.programs_per_sm(p, Config(block_m=64, block_n=128, num_stages=6), H200) == 1  # shared memory
    assert l2.programs_per_sm(p, Config(block_m=16, block_n=16, block_k=16, num_warps=16), H200) == 2
    assert l2.concurrent(p, large_config(RowMajor()), H200) == 132
    assert l2.concurrent(Problem(128, 512, 64), large_config(RowMajor()), H200) == 2


def test_gpu_by_name_and_by_value_agree():
    c = large_config(SwizzleMerge(8))
    assert l2.traffic(2048, 2048, 2048, c) == l2.traffic(2048, 2048, 2048, c, gpu=H200)
    with pytest.raises(ValueError, match="unknown GPU 'h2000'"):
        l2.traffic(2048, 2048, 2048, c, gpu="h2000")


def test_what_is_no_config_is_refused():
    with pytest.raises(TypeError, match=r"config is 'hopper'; it must be a tritonmm\.Config"):
        l2.traffic(2048, 2048, 2048, "hopper")


def test_table_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="does not fit a grid of 4 x 2 tiles"):
        l2.traffic(64, 64, 64, small_config(shuffled(3, 3)))


@pytest.mark.parametrize("name", gpus.names())
def test_every_gpu_is_modelled(name):
    p = Problem(4096, 4096, 1024)
    found = l2.traffic(4096, 4096, 1024, Config(order=orders.parse("hilbert")), gpu=name)
    assert compulsory_reads(p) <= found.dram_read_bytes <= found.l2_read_bytes


def test_prints_units_and_hit_rate():
    assert (
        str(l2.Traffic(2_500_000_000, 900, 10_000_000_000))
        == "DRAM reads 2.5 GB, writes 900 B; L2 reads 10 GB, 75.0% hit"
    )


@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "plain"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("sizes", [(16384, 16384, 4096), (8200, 8192, 896), (3000, 9000, 2000)], ids=str)
def test_within_a_sixth_of_the_simulator(sizes, order, persistent):
    p, c = Problem(*sizes), replace(large_config(order), persistent=persistent)
    found, exact = l2.of(p, c, H200), l2_simulator.simulate(p, c, H200)
    assert found.dram_read_bytes == pytest.approx(exact.dram_read_bytes, rel=1 / 6)
    assert found.l2_read_bytes == pytest.approx(exact.l2_read_bytes, rel=0.03)
    assert found.dram_write_bytes == exact.dram_write_bytes


def test_the_closed_form_is_near_the_simulator_on_any_problem():
    """Batches, split K, both axes, tiles in two sizes: half of the errors below 0.1%, 95% below 6%."""
    rng = np.random.default_rng(5)
    orders = [o for o in ORDERS if l2_groups.groups(o)] + [SwizzleMerge(8), SwizzleMerge(24), Serpentine(12)]
    errors = []
    for _ in range(120):
        m, n, k = (int(2**x) for x in rng.uniform(6, 13.5, size=3))
        p = Problem(m, n, k, batch=int(rng.choice([1, 1, 3])))
        c = replace(large_config(orders[rng.integers(len(orders))]), persistent=bool(rng.integers(2)))
        c = replace(c, block_n=int(rng.choice([128, 256])), kernel="tile", split_k=int(rng.choice([1, 1, 2])))
        found, exact = l2.of(p, c, H200), l2_simulator.simulate(p, c, H200)
        errors.append([abs(getattr(found, x) / getattr(exact, x) - 1) for x in ("dram_read_bytes", "l2_read_bytes")])
    assert (np.median(errors, axis=0) < 0.001).all(), np.median(errors, axis=0)
    assert (np.quantile(errors, 0.95, axis=0) < 0.06).all(), np.quantile(errors, 0.95, axis=0)


def test_the_closed_form_looks_at_no_program(monkeypatch):
    """However many waves there are, none is looked at: no order is mapped and nothing is sampled."""
    monkeypatch.setattr(l2_waves, "sampled", lambda *_: pytest.fail("sampled"))
    for order in (o for o in ORDERS if l2_groups.groups(o)):
        monkeypatch.setattr(type(order), "_map", lambda *_: pytest.fail("mapped"))
        l2.estimate(LARGE, large_config(order), H200, FITTED)


def test_the_best_factor_moves_the_fewest_bytes():
    factors = (32, 1, 4, 6, 8, 16, 12)
    best = l2.best_factor(LARGE, large_config(RowMajor()), H200, factors)
    found = {f: l2.of(LARGE, large_config(SwizzleMerge(f)), H200) for f in factors}
    moved = {f: t.dram_read_bytes + l2.L2_BYTE * t.l2_read_bytes for f, t in found.items()}
    assert moved[best] == min(moved.values())
    across = large_config(SwizzleMerge(1, along="n"))
    assert l2.best_factor(LARGE, across, H200, factors) < best, "tiles are twice as wide as high"


def test_the_best_factor_of_equals_is_the_smallest():
    one_row = Problem(128, 8192, 512)
    assert l2.best_factor(one_row, large_config(RowMajor()), H200, [8, 2, 4]) == 2
    with pytest.raises(ValueError, match="no factor given"):
        l2.best_factor(one_row, large_config(RowMajor()), H200, [])


def test_the_sample_does_not_grow_with_the_product(monkeypatch):
    """A large product costs no more than one that is a few waves longer than the sample."""
    seen = []
    missed = l2_waves._missed
    monkeypatch.setattr(l2_waves, "_missed", lambda used, *rest: seen.append(used.shape[0]) or missed(used, *rest))
    for size in (8192, 16384, 65536):
        l2.estimate(Problem(size, size, 4096), large_config(SwizzleMerge(8, 2)), H200, FITTED)
    assert max(seen) <= l2_waves.FIRST_WAVES + l2_waves.LAST_WAVES


def test_says_where_it_is_unverified():
    c = large_config(SwizzleMerge(8))
    assert "unverified" not in str(l2.traffic(4096, 4096, 1024, c, gpu="h200"))
    assert "unverified" in str(l2.traffic(4096, 4096, 1024, c, gpu="a100"))
