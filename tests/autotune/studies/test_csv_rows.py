"""The file of a study has all rows that were measured before it ended."""

import dataclasses

import pytest

from tritonmm.autotune.studies import csv_rows


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_what_is_measured_is_kept_if_a_study_ends_early(tmp_path):
    def rows():
        yield Point(1, 2)
        yield Point(3, 4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        csv_rows.write_each(tmp_path / "rows.csv", rows(), {"gpu": "H200"})
    assert (tmp_path / "rows.csv").read_text() == "# gpu: H200\nx,y\n1,2\n3,4\n"
