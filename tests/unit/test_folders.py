from pathlib import Path

from sluice.process.folders import file_sizes


def test_files_and_folders_that_are_removed_meanwhile_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a.jar.part", "b.jar.part", "inner/c.jar"):
        (tmp_path / name).write_bytes(b"123")
    sizes = file_sizes(tmp_path)

    first, _ = next(sizes)
    for path in {tmp_path / "a.jar.part", tmp_path / "b.jar.part"} - {first}:
        path.unlink()
    (tmp_path / "inner" / "c.jar").unlink()
    (tmp_path / "inner").rmdir()

    assert [size for _, size in sizes] == []
    assert sum(size for _, size in file_sizes(tmp_path)) == 3
