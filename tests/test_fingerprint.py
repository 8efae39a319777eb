"""The fingerprint that refactorings are proved by sees what changes, and only that."""

import json

from fingerprint import differences, normalized

PTX = """
.version 8.7
.visible .entry gemm(.param .u64 gemm_param_0)
{
	.loc	1 12 5 // hopper.py:12
	add.s32 %r1, %r2, 1; // a comment
	ld.param.b64 %rd1, [gemm_param_0];
}
	.section	.debug_abbrev
	{ .b8 1 }
"""
CONFIG = json.dumps({"kernel": "weights", "block_m": 64})
FOUND = {"ptx": [["sm_90 a", "1"], ["sm_90 b", "1"], ["sm_90 c", "2"]], "choices": {"h200 64x64x64": CONFIG}}


def test_names_lines_and_debug_sections_do_not_count_and_instructions_do():
    moved = PTX.replace("gemm", "matmul").replace("1 12 5 // hopper.py:12", "3 99 1 // kernel.py:99")
    assert normalized(moved) == normalized(PTX)
    assert "matmul" not in normalized(moved)
    assert "debug" not in normalized(PTX)
    assert normalized(PTX.replace("%r2, 1", "%r2, 2")) != normalized(PTX)


def test_a_changed_kernel_and_a_changed_choice_are_found():
    assert differences(FOUND, FOUND, {}) == []
    after = {"ptx": [["sm_90 d", "1"], ["sm_90 c", "2"], ["sm_90 b", "3"]], "choices": FOUND["choices"]}
    assert differences(FOUND, after, {}) == ["PTX only after: sm_90 b: 3", "PTX only before: sm_90 a: 1"]
    renamed = FOUND | {"choices": {"h200 64x64x64": CONFIG.replace("weights", "mixed_input")}}
    assert len(differences(FOUND, renamed, {})) == 1
    assert differences(FOUND, renamed, {"weights": "mixed_input"}) == []
    assert len(differences(FOUND, FOUND | {"choices": {}}, {})) == 1


def test_persistent_does_not_count_where_it_is_no_choice():
    def with_config(**fields):
        return FOUND | {"choices": {"h200 64x64x64": json.dumps({"block_m": 64, **fields})}}

    assert differences(with_config(kernel="hopper", persistent=True), with_config(kernel="hopper"), {}) == []
    plain, walks = (with_config(kernel="tile", persistent=x) for x in (False, True))
    assert len(differences(plain, walks, {})) == 1
