"""The ceilings of lines of each folder."""

from pathlib import Path

from scripts.ceilings import above


def test_a_folder_above_its_ceiling_is_named_and_build_products_do_not_count(tmp_path: Path) -> None:
    for name, lines in (("state/rule.py", 3), ("state/built/made.py", 100), ("sinks/topic.py", 2), ("sinks/a.java", 1)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * lines)

    assert [*above(tmp_path, {"state sinks": {"py": 5, "java": 1}})] == []
    assert [*above(tmp_path, {"state sinks": {"py": 4}, "state": {"py": 3}})] == [
        "state sinks: 5 lines of .py, and its ceiling is 4; delete or move some"
    ]
