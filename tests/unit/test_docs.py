"""The pages: every link resolves, and every file, module and name that they mention exists."""

import ast
import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from sluice import Answer, Gateway, GatewayOptions
from sluice.streaming.checkpoint import origin

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
FOLDERS = (
    *(
        "cli",
        "configs",
        "demo",
        "deploy",
        "docs",
        "gateways",
        "insight",
        "jvm",
        "kafka_io",
        "scripts",
        "sinks",
        "sluice",
    ),
    *("state", "streaming", "tests", ".ci"),
)
"""Top-level folders; a path in a page that begins with one of them is a path in the repository."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PATH = re.compile(rf"(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)")
_MODULE_TO_RUN = re.compile(rf"-m ((?:{'|'.join(FOLDERS[:-1])})\.[\w.]+)")
_SETTING = re.compile(r"(topics|state|enforce|audit|delta|quotas|restart|health)\.(\w+)(?!\w*[./(])")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def test_one_rule_for_the_number_of_pages() -> None:
    """The setting is frozen with the checkpoint: a newcomer believes what is said first for ever."""
    default = f"{origin.BATCHED_PAGES:,}".replace(",", " ")
    sizing = (REPOSITORY / "docs/sizing.md").read_text()
    rule = next(line for line in sizing.splitlines() if "`state.pages`" in line)
    assert f"a new one gets {default}, or {origin.PAGES} without batched workers" in rule
    assert f"begins with {default} pages" in sizing
    most = f"{origin.MOST_SPLIT_PAGES:,}".replace(",", " ")
    assert f"{most} pages, to which the default grows" in sizing
    rows = re.findall(r"^\| ([\d ]+) \| ([\d ]+) \| [\d ]+ \| (\d+) \| \d+ \| ([\w ]+) \|", sizing, re.MULTILINE)
    for _, entities, jobs, pages in rows:
        small = int(entities.replace(" ", "")) / int(jobs) <= 1_000_000
        assert pages == ("default" if small else "16 384")
    assert len(rows) == 7
    comment = re.search(r"null: (\d+), (\d+) without batched", (REPOSITORY / "configs/default.yaml").read_text())
    assert comment is not None
    assert tuple(map(int, comment.groups())) == (origin.BATCHED_PAGES, origin.PAGES)


def test_the_first_commands_of_the_readme_are_those_of_a_checkout() -> None:
    """No release is needed for them: `pip install sluice-kafka` comes later, and says what it waits for."""
    readme = REPOSITORY / "README.md"
    commands = [line.removeprefix("$ ").split("#")[0].strip() for line in _fences(readme)[0][1].splitlines()]
    assert commands == ["./scripts/run", "./scripts/test"]
    assert all(os.access(REPOSITORY / command, os.X_OK) for command in commands)
    before_install = readme.read_text().partition("pip install")[0]
    assert before_install.rpartition("\n\n")[2].startswith("`./scripts/run` is `sluice demo`")
    assert "Once a release is on PyPI" in before_install.rpartition("\n\n")[2]


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of each code block."""
    return _FENCE.findall(page.read_text())


def _anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as forges make them."""
    headings = _HEADING.findall(_prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _relative_links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(_prose(page)) if "://" not in link]


def _linked_pages(page: Path) -> set[Path]:
    return {(page.parent / link.partition("#")[0]).resolve() for link in _relative_links(page)}


def _code_words(page: Path) -> Iterator[str]:
    """The words between backticks and in code blocks."""
    for code in [*_CODE.findall(_prose(page)), *(text for _, text in _fences(page))]:
        yield from code.split()


def _gone_paths(page: Path) -> list[str]:
    paths = (match.group(1) for word in _code_words(page) if (match := _PATH.match(word)))
    made = re.compile(r"(sluice/)?jvm/built\b")  # by ./scripts/setup, if there is Java
    return [path for path in paths if not made.match(path) and not (REPOSITORY / path.rstrip(".")).exists()]


def _gone_file_names(page: Path) -> list[str]:
    """Python files that are named without their folder, such as `codec.py`, and that no folder has."""
    there = {file.name for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*.py")}
    return [word for word in _code_words(page) if re.fullmatch(r"\w+\.py", word) and word not in there]


@pages
def test_relative_links_resolve(page: Path) -> None:
    for link in _relative_links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page

        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pages
def test_every_repository_path_exists(page: Path) -> None:
    assert _gone_paths(page) == []
    assert _gone_file_names(page) == []


@pages
def test_every_module_to_run_exists(page: Path) -> None:
    modules = _MODULE_TO_RUN.findall(page.read_text())

    gone = [module for module in modules if not (REPOSITORY / module.replace(".", "/")).with_suffix(".py").exists()]
    assert gone == []


@pages
def test_every_setting_exists(page: Path) -> None:
    settings = yaml.safe_load((REPOSITORY / "configs" / "default.yaml").read_text())
    chart = yaml.safe_load((REPOSITORY / "deploy" / "chart" / "values.yaml").read_text())

    found = [match.groups() for word in _code_words(page) if (match := _SETTING.match(word))]
    assert [(section, key) for section, key in found if key not in settings[section] | chart.get(section, {})] == []


@pages
def test_python_examples_import_what_is_there(page: Path) -> None:
    for language, text in _fences(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_page_of_gateways_names_every_method_of_a_gateway_and_every_field_of_an_answer() -> None:
    prose = _prose(REPOSITORY / "docs" / "gateways.md")
    names = [name for name in vars(Gateway) if not name.startswith("_")] + list(Answer.__struct_fields__)

    assert [name for name in names if not re.search(rf"`{name}\b", prose)] == []


def test_the_page_of_gateways_has_every_option_with_its_default() -> None:
    table = _prose(REPOSITORY / "docs" / "gateways.md").partition("| option | default | |\n")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[:2] for line in table.splitlines()[1:]]
    documented = {name: default for names, default in cells for name in _CODE.findall(names)}
    values = {name: yaml.safe_load(default.strip("`")) for name, default in documented.items()}
    in_words = ("name", "instance", "quota", "requests_topic", "sums_topic", "limits_topic", "waits_topic")
    named = {name: value for name, value in values.items() if name not in in_words}

    assert set(documented) == {option.name for option in fields(GatewayOptions)}
    assert replace(GatewayOptions(name="any"), **named) == GatewayOptions(name="any")


def test_every_page_is_within_two_links_of_the_readme() -> None:
    readme = REPOSITORY / "README.md"
    near = {readme, *_linked_pages(readme)}
    reached = near.union(*(_linked_pages(page) for page in near if page.name == "README.md"))

    assert [str(page.relative_to(REPOSITORY)) for page in PAGES if page not in reached] == []


def test_a_decision_record_has_ten_lines_at_most_and_is_listed_with_its_number_and_title() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    records, listed = sorted(folder.glob("[0-9]*.md")), (folder / "README.md").read_text()

    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        lines = record.read_text().splitlines()
        number, _, title = lines[0].removeprefix("# ").partition(". ")
        assert number == record.name[:4]
        assert f"* [{number}]({record.name}) {title}\n" in listed
        assert re.match(r"\* 20\d\d-\d\d-\d\d: ", lines[2])
        assert len(lines) <= 10, record.name


def test_what_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`state/store/no_such_codec.py`, `no_such_file.py`, and:\n\n```console\n$ ./scripts/no-such\n```\n")

    assert _gone_paths(page) == ["state/store/no_such_codec.py", "scripts/no-such"]
    assert _gone_file_names(page) == ["no_such_file.py"]
