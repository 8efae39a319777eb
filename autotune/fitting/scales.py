"""Scales: few numbers that carry the constants of one GPU over to another.

A scale multiplies all constants that mean the same, in every family: few measurements cannot tell them apart, and a GPU
that has slower launches has them in every kernel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tritonmm.autotune.fitting.time_fit import Constant, with_tiles
from tritonmm.model.record import Record

NAMES = {
    "launch": ("launch_us", "start_us", "short_us"),
    "device memory": ("stream", "short_share"),
    "SM bandwidth": ("sm_bandwidth", "lone_bandwidth"),
    "L2 bandwidth": ("l2_bandwidth",),
    "fixup": ("split_us", "part_us", "fixup_us"),
}
"""The constants of each scale, by their names wherever a record has them."""


def scales(kernels: Sequence[str]) -> list[Constant]:
    """The scales of a record: those of `NAMES`, the fixed times of all tiles, and for each family of `kernels` what it
    reaches of the peak rate."""
    found = [Constant(name, _named(names)) for name, names in NAMES.items()]
    found.append(Constant("fixed times", _fixed))
    return found + [Constant(f"share of {kernel}", _share(kernel)) for kernel in kernels]


def _named(names: Sequence[str]):
    def changed(record: Record, power: float) -> Record:
        factor = math.exp(power)
        families = {
            family: section | {"limits": _times(section["limits"], names, factor)}
            if "limits" in section
            else _of_values(section, names, factor)
            for family, section in record.families.items()
        }
        return replace(record, shared=_times(record.shared, names, factor), families=families)

    return changed


def _fixed(record: Record, power: float) -> Record:
    factor = math.exp(power)
    record = with_tiles(record, lambda kernel, kind, tile: tile._replace(fixed_us=tile.fixed_us * factor))
    families = {
        family: section | {"limits": _times(section["limits"], ("drain_us",), factor)}
        if "limits" in section
        else section
        for family, section in record.families.items()
    }
    return replace(record, families=families)


def _share(kernel: str):
    def changed(record: Record, power: float) -> Record:
        factor = math.exp(power)
        section = record.families[kernel]
        if "limits" not in section:
            names = [name for name in section if name.endswith("share") and name not in NAMES["device memory"]]
            return replace(record, families=record.families | {kernel: _of_values(section, names, factor)})
        return with_tiles(
            record, lambda name, kind, tile: tile._replace(share=tile.share * factor) if name == kernel else tile
        )

    return changed


def _times(values: Any, names: Sequence[str], factor: float) -> Any:
    """A dataclass with the fields of those names multiplied."""
    known = [field.name for field in fields(values) if field.name in names]
    return replace(values, **{name: getattr(values, name) * factor for name in known})


def _of_values(section: Mapping[str, Any], names: Sequence[str], factor: float) -> dict[str, Any]:
    return {name: value * factor if name in names else value for name, value in section.items()}
