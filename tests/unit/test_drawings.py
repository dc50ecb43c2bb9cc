"""The drawings of the pages."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.drawings import DRAWINGS, IMAGES, draw


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_an_image_with_a_description_that_loads_nothing_and_is_on_a_page(name: str) -> None:
    drawn = DRAWINGS[name]()
    root = ElementTree.fromstring(drawn)  # noqa: S314 # drawn here

    assert root.get("aria-label")
    assert "href" not in drawn
    assert "url(" not in drawn
    assert (IMAGES / name).exists(), "`python -m scripts.drawings` draws it"
    assert any(f"](images/{name})" in page.read_text() for page in IMAGES.parent.glob("*.md"))


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    draw(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}

    draw(tmp_path)

    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
