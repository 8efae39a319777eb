"""Retired words do not come back: names and texts use the field's terms, with one word for one thing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = {
    "beside torch": "compared with torch",
    "card": "GPU, or NVML",
    "claims": "leases",
    "dealt": "assigned, or SM affinity",
    "disposable": "child process",
    "house": "repository",
    "hunt": "search",
    "megarow": "group",
    "promoted": "two-level accumulation",
    "relaid": "repacked",
    "relayout": "repack",
    "ring": "pipeline",
    "rival": "torch, or ours",
    "rooms": "modules",
    "seats": "SM affinity",
    "strips": "N-subtiles",
    "usher": "claim warp",
    "weights of a byte": "8-bit weights",
}
"""What each retired word is called now."""

ALLOWED = {
    ("claims", "autotune/tuner/leases.py"): "the name of the table in stores",
    ("claims", "tritonmm/families/hopper"): "what the claim warp does",
    ("relayout", "tritonmm/config.py"): "the field's name in older files",
}
"""Uses that stay, by word and by file or folder, each with its reason."""

PENDING: dict[str, set[str]] = {"tritonmm/tuned/errors.py": {"relayout"}}
"""Words that are still to be replaced, by file or folder."""


def files() -> list[Path]:
    """Sources and pages, this repository's own."""
    code = [path for name in ("tritonmm", "autotune", "plots") for path in (ROOT / name).rglob("*.py")]
    return sorted([*code, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"])


def is_within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def uses(word: str) -> list[str]:
    """path:line of each use of the word or its plural, as a word or as a part of an identifier."""
    spaced = word.replace(" ", r"\s+")
    pattern = re.compile(rf"(?<![a-z]){spaced}s?(?![a-z])", re.I)
    found = []
    for path in files():
        text = re.sub(r"h200-[\w.-]+", "", path.read_text(encoding="utf-8"))  # names of results files stay
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}" for match in pattern.finditer(text)]
        if pattern.search(path.stem):
            found.append(f"{name}:0")
    return found


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_stay_away(word):
    excused = [place for allowed, place in ALLOWED if allowed == word]
    excused += [place for place, words in PENDING.items() if word in words]
    found = [use for use in uses(word) if not any(is_within(use.partition(":")[0], place) for place in excused)]
    assert not found, f"{word!r} is called {RETIRED[word]!r} now: {', '.join(found)}"


def test_no_exception_outlives_its_use():
    asked = [*ALLOWED, *((word, place) for place, words in PENDING.items() for word in words)]
    unused = [
        (word, place) for word, place in asked if not any(is_within(use, place) for use in map(_path, uses(word)))
    ]
    assert not unused


def _path(use: str) -> str:
    return use.partition(":")[0]
