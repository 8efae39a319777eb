"""The record of one GPU's fitted constants, of the time model and of the L2 model, and its spelling as a JSON file."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tritonmm.model.l2_laws import Constants as L2Constants


@dataclass(frozen=True, slots=True)
class Shared:
    """What the launches of all families have in common.

    launch_us: a launch that follows another, its first loads included.
    cluster_us: a launch of clusters takes so much longer.
    first_us: from the launch to the first bytes of memory, and from the last bytes to the end.
    lone_bandwidth: bytes/s that one SM reads from device memory while few do.
    split_us: a launch with split tiles takes so much longer, for a cooperative grid and the fixup.
    part_us: the same for each part, which adds its sums after the part before it.
    partial_bandwidth: bytes/s at which all parts write and read their fp32 sums.
    gather_bandwidth: bytes/s at which the one program that arrives last reads the sums of its tile.
    staged_bandwidth: bytes/s of unaligned outputs, which are stored an element a thread.
    repack_us: a launch that copies an operand into aligned rows.
    repack_share: share of the bandwidth of device memory that those copies reach.
    load_latency_us: from the request of a stage's operands to their arrival.
    element_rate: elements/s that an SM loads where alignment allows one at a time.
    element_wait_us: what a step of such loads waits for memory and its threads, however many programs there are.
    element_us: what that takes longer for each such element of a thread.
    """

    launch_us: float
    cluster_us: float
    first_us: float
    lone_bandwidth: float
    split_us: float
    part_us: float
    partial_bandwidth: float
    gather_bandwidth: float
    staged_bandwidth: float
    repack_us: float
    repack_share: float
    load_latency_us: float
    element_rate: float
    element_wait_us: float
    element_us: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits one kernel family besides its tiles.

    stream: share of the bandwidth of device memory.
    sm_bandwidth: bytes/s that an SM receives while all do.
    l2_bandwidth: bytes/s of the requests of all SMs that reach L2.
    crossed: extra cost of a byte in a line that crosses cache lines. half_lines: the same of B in lines of 64 bytes.
    late: the share by which that grows where just more than half of the SMs are busy, see `time.beyond_half`.
    again: cost of an operand that several rows or columns of tiles read, as a share of reading it once from DRAM.
    write_page: cost in bytes of each contiguous run of the output, see `tile_order.run_bytes`.
    step_overlap, overlap: the p of the p-norms of a step, and of the whole.
    absent: the power with which the mma of a step grows with the consumers that have rows, where not all have.
    drain_us: from the end of the last tiles to the end of their stores, for 10^4 elements of a tile on every SM.
    caution: factor of estimates that err more than others: the shortest of many estimates is likely one that errs.
    """

    stream: float
    sm_bandwidth: float
    l2_bandwidth: float
    crossed: float
    overlap: float
    again: float = 0.0
    write_page: float = 0.0
    late: float = 0.0
    half_lines: float = 0.0
    step_overlap: float = float("inf")
    absent: float = 0.0
    drain_us: float = 0.0
    caution: float = 1.0


class Tile(NamedTuple):
    """A tile that is tried: its shape, and what it reaches.

    share: of the peak rate, by a full wave within its loop over K where nothing else limits it; fixed_us: microseconds
    a wave beside that loop; resident: programs that an SM runs at once, a wave's. Fewer take as long: what a thread
    waits for, others of its SM fill.
    """

    blocks: tuple[int, int, int]
    num_stages: int
    num_warps: int
    share: float
    fixed_us: float
    resident: int = 1

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.blocks))} stages:{self.num_stages} warps:{self.num_warps}"


@dataclass(frozen=True, eq=False)
class Record:
    """The constants of one GPU. Compared by identity.

    made: how each part was made: the command, its data and the date. l2: the constants of the L2 model. families: what
    the model of each kernel family reads: `limits` and `tiles` where it lists tiles. source: where it is from, for
    people; digest: of the file.
    """

    gpu: str
    made: Mapping[str, str]
    shared: Shared
    l2: L2Constants
    families: Mapping[str, Mapping[str, Any]]
    source: str = ""
    digest: str = ""

    def limits(self, family: str) -> Limits:
        return self.families[family]["limits"]

    def tiles(self, family: str, kind: str) -> tuple[Tile, ...]:
        """The tiles that a family tries for operands of a kind, the first preferred among equals."""
        return self.families[family]["tiles"][kind]


def parsed(found: Any, source: str, content: bytes) -> Record:
    """The record in a JSON object. Raises ValueError for anything else. content: of its file."""
    try:
        return Record(
            found["gpu"],
            found["made"],
            Shared(**found["shared"]),
            L2Constants(**found["l2"]),
            {name: _family(name, section) for name, section in found["families"].items()},
            source,
            hashlib.sha256(content).hexdigest()[:16],
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a record of fitted constants: {error}") from None


def _family(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    if "limits" not in section:
        return section
    tiles = {kind: tuple(map(_tile, named.items())) for kind, named in section["tiles"].items()}
    return {"limits": Limits(**section["limits"]), "tiles": tiles}


def _tile(named: tuple[str, list[float]]) -> Tile:
    """Of a tile as `str` spells it, and its share, fixed_us and resident."""
    blocks, stages, warps = named[0].split()
    block_m, block_n, block_k = map(int, blocks.split("x"))
    share, fixed_us, *resident = named[1]
    return Tile(
        (block_m, block_n, block_k),
        int(stages.removeprefix("stages:")),
        int(warps.removeprefix("warps:")),
        share,
        fixed_us,
        *map(int, resident),
    )


def values(record: Record) -> dict[str, Any]:
    """The record in JSON values: numbers of four digits, tiles by their spelling."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, Mapping):
            return {key: rounded(each) for key, each in value.items() if each != math.inf}
        return value

    def section(found: Mapping[str, Any]) -> Mapping[str, Any]:
        if "tiles" not in found:
            return rounded(found)
        tiles = {
            kind: {
                str(t): [float(f"{t.share:.3g}"), float(f"{t.fixed_us:.3g}"), *([t.resident] if t.resident > 1 else [])]
                for t in of_kind
            }
            for kind, of_kind in found["tiles"].items()
        }
        return {"limits": rounded(asdict(found["limits"])), "tiles": tiles}

    return {
        "gpu": record.gpu,
        "made": dict(record.made),
        "shared": rounded(asdict(record.shared)),
        "l2": rounded(asdict(record.l2)),
        "families": {name: section(of_family) for name, of_family in record.families.items()},
    }


def spelled(found: Mapping[str, Any]) -> str:
    """The text of a record's file, of its `values`: a tile a line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"
