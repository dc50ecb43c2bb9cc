"""Hooks of the documentation's site (mkdocs.yml): what docs/ does not have in the form that a site needs.

docs/README.md is the map of the pages, and so the navigation. Pages outside docs/ are added, with links that fit,
and a reference of the names in `sluice`, which mkdocstrings makes from the docstrings.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_TOP = Path(__file__).resolve().parents[1]
_ADDED = {
    "README.md": "start.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    **{f"extras/{page.parent.name}/README.md": f"extra-{page.parent.name}.md" for page in _TOP.glob("extras/*/*.md")},
    "tests/bounds.md": "bounds.md",
}
"""Page outside docs/ -> its name on the site."""

_API = "api.md"
_SECTION = re.compile(r"^\| ([^|]+) \| \|$")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\) \|")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def navigation(map_page: str) -> list[dict[str, Any]]:
    """The navigation, from the tables of docs/README.md: a section for each table, a page for each row.

    >>> navigation("| start | |\\n|---|---|\\n| [README](../README.md) | the first run |\\n")
    [{'Start': [{'README': 'start.md'}]}]
    """
    found: list[dict[str, Any]] = []
    for line in map_page.splitlines():
        if section := _SECTION.match(line):
            found.append({section[1].capitalize(): []})
        elif row := _ROW.match(line):
            (rows,) = found[-1].values()
            rows.append({row[1]: _ADDED.get(row[2].removeprefix("../"), row[2])})
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Draw the pictures, and set the navigation."""
    run_path(str(_TOP / "scripts" / "drawings.py"))["draw"]()  # mkdocs finds no package of the checkout
    sections = navigation((_TOP / "docs" / "README.md").read_text())
    config.nav = [{"All pages": "README.md"}, *sections, {"Python API": _API}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ and the reference of the API."""
    for name, on_site in _ADDED.items():
        files.append(File.generated(config, on_site, content=(_TOP / name).read_text()))
    files.append(File.generated(config, _API, content="# Python API\n\n::: sluice\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site; a link to a file that the site doesn't have leads to the repository."""
    source = page.file.src_uri
    folder = _TOP / {name: path for path, name in _ADDED.items()}.get(source, f"docs/{source}")

    def led(found: re.Match[str]) -> str:
        path, hash_sign, anchor = found[3].partition("#")
        target = (folder.parent / path).resolve()
        on_site = _on_site(target)
        if on_site is not None and files.get_file_from_path(on_site):
            return f"{found[1]}[{found[2]}]({_relative(on_site, source)}{hash_sign}{anchor})"
        if not target.exists():
            return found[0]  # a link into nothing, which --strict refuses
        if not config.repo_url:
            return found[2]
        return f"[{found[2]}]({config.repo_url.rstrip('/')}/blob/main/{target.relative_to(_TOP)})"

    return "".join(part if is_code else _LINK.sub(led, part) for is_code, part in _parts(markdown))


def _on_site(target: Path) -> str | None:
    """The name of a file of the repository on the site, where it may have none."""
    if target.is_relative_to(_TOP / "docs"):
        return target.relative_to(_TOP / "docs").as_posix()
    return _ADDED.get(target.relative_to(_TOP).as_posix()) if target.is_relative_to(_TOP) else None


def _relative(on_site: str, source: str) -> str:
    return "../" * source.count("/") + on_site


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """The text in parts, each with True if it is a block of code."""
    for number, part in enumerate(re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)):
        yield number % 2 == 1, part
