"""Faults of a table or a file that the job reads beside the requests."""

import shutil
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake


def newest(place: Path, pattern: str) -> Path:
    return max(place.glob(pattern), key=lambda file: file.stat().st_mtime_ns)


def gone(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink()


def a_file(place: Path) -> None:
    gone(place)
    place.write_text("no table")


def a_folder(place: Path) -> None:
    gone(place)
    place.mkdir()


def empty_commit(place: Path) -> None:
    newest(place, "_delta_log/*.json").write_bytes(b"")


def cut_commit(place: Path) -> None:
    commit = newest(place, "_delta_log/*.json")
    commit.write_bytes(commit.read_bytes()[:-100])


def no_data_file(place: Path) -> None:
    newest(place, "*.parquet").unlink()


def empty_data_file(place: Path) -> None:
    newest(place, "*.parquet").write_bytes(b"")


def no_log(place: Path) -> None:
    shutil.rmtree(place / "_delta_log")


def other_columns(place: Path) -> None:
    gone(place)
    write_deltalake(str(place), pa.table({"other": [1]}))


def empty(place: Path) -> None:
    place.write_bytes(b"")


def cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-5])


def another(place: Path) -> None:
    place.write_text('{"other": 1}')


OF_TABLES = (gone, a_file, a_folder, empty_commit, cut_commit, no_data_file, empty_data_file, no_log, other_columns)
OF_FILES = (gone, a_folder, empty, cut, another)
