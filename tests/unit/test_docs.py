"""The pages: every link resolves, and every file, module and name that they mention exists."""

import ast
import importlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import yaml

from scripts.docstrings import unclear
from sluice import Answer, Gateway, GatewayOptions
from sluice.streaming.checkpoint import origin

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for pages in ("*.md", "docs/**/*.md", "extras/*/*.md", "tests/*.md") for page in REPOSITORY.glob(pages)
)
FOLDERS = (
    *("cli", "configs", "docs", "extras", "gateways", "jvm", "kafka_io", "process", "scripts", "sinks", "sluice"),
    *("state", "streaming", "tests", ".ci"),
)
"""Top-level folders; a path in a page that begins with one of them is a path in the repository."""

FILE_NAMES = frozenset(file.name for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*.py"))
SETTINGS = yaml.safe_load((REPOSITORY / "configs" / "default.yaml").read_text())
VALUES = yaml.safe_load((REPOSITORY / "extras" / "deploy" / "chart" / "values.yaml").read_text())

FOREIGN = {"rate_limit_quota", "ConfigCommand", "CustomQuotaCallbackTest", "AbortMultipartUpload"}
"""Names of others that pages mention and the source doesn't."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TEST = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PATH = re.compile(rf"(?:\./)?((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)")
_MODULE_TO_RUN = re.compile(rf"-m ((?:{'|'.join(FOLDERS[:-1])}|sluice_\w+)\.[\w.]+)")
_SETTING = re.compile(r"(topics|state|enforce|audit|delta|quotas|restart|health)\.(\w+)(?!\w*[./(])")

_SECTIONS = ("What", "When", "How", "Gotchas", "Security", "Operations")
_IN_FILE = re.compile(r"`([\w/-]+\.(?:py|java))` \(((?:`\w+`(?:, )?)+)\)")
_NAME = re.compile(r"_?[a-z0-9]+(?:_[a-z0-9]+)+|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+|_[a-z]+")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def test_one_rule_for_the_number_of_pages() -> None:
    """The setting is frozen with the checkpoint: a newcomer believes what is said first for ever."""
    default = f"{origin.BATCHED_PAGES:,}".replace(",", " ")
    sizing = (REPOSITORY / "docs/sizing.md").read_text()
    assert f"a new one gets {default}, or {origin.PAGES} without batched workers" in sizing
    assert f"begins with {default} pages" in sizing
    most = f"{origin.MOST_SPLIT_PAGES:,}".replace(",", " ")
    assert f"{most} pages, to which the default grows" in sizing
    rows = re.findall(r"^\| ([\d ]+) \| ([\d ]+) \| [\d ]+ \| (\d+) \| \d+ \| ([\w ]+) \|", sizing, re.MULTILINE)
    for _, entities, jobs, pages in rows:
        small = int(entities.replace(" ", "")) / int(jobs) <= 1_000_000
        assert pages == ("default" if small else "16 384")
    assert len(rows) == 4
    comment = re.search(r"null: (\d+), (\d+) without batched", (REPOSITORY / "configs/default.yaml").read_text())
    assert comment is not None
    assert tuple(map(int, comment.groups())) == (origin.BATCHED_PAGES, origin.PAGES)


def test_the_first_commands_of_the_readme_are_those_of_a_checkout() -> None:
    """No release is needed for them: `pip install sluice-kafka` comes later, and says what it waits for."""
    readme = REPOSITORY / "README.md"
    commands = [line.removeprefix("$ ").split("#")[0].strip() for line in _fences(readme)[0][1].splitlines()]
    exposure = ".venv/bin/sluice quotas exposure --bootstrap-servers HOST:PORT"
    assert commands == ["./scripts/run", exposure, "./scripts/test"]
    assert all(os.access(REPOSITORY / command.split()[0], os.X_OK) for command in commands)
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
    made = re.compile(r"(sluice/)?jvm/built\b|extras/\w+/\w+/built\b")  # by ./scripts/setup, if there is Java
    return [path for path in paths if not made.match(path) and not (REPOSITORY / path.rstrip(".")).exists()]


def _gone_file_names(page: Path) -> list[str]:
    """Python files that are named without their folder, such as `codec.py`, and that no folder has."""
    return [word for word in _code_words(page) if re.fullmatch(r"\w+\.py", word) and word not in FILE_NAMES]


@cache
def _words() -> frozenset[str]:
    """The words of the source, and the names of its files; a browser that was fetched has all words there are."""
    files = [file for folder in {*FOLDERS} - {"docs"} for file in (REPOSITORY / folder).rglob("*")]
    suffixes = (".py", ".java", ".yaml", ".json", ".xml", ".html", "")
    source = [file for file in files if file.suffix in suffixes and file != Path(__file__)]
    own = (file for file in source if file.is_file() and ".browser" not in file.parts)
    texts = (file.read_text(errors="ignore") for file in own)
    return frozenset(file.stem for file in source).union(*(re.findall(r"\w+", text) for text in texts))


def _gone_names(page: Path) -> list[str]:
    """Names in code words that are no part of a word of the source, and those after a file that doesn't define them."""
    prose = _prose(page)
    named = {name for code in _CODE.findall(prose) for name in re.findall(r"\w+", code) if _NAME.fullmatch(name)}
    unknown = {name.removesuffix("_total").removeprefix("_") for name in named - _words() - FOREIGN}
    gone = {name for name in unknown if not any(name in word for word in _words())}
    for file, names in _IN_FILE.findall(prose):
        text = (REPOSITORY / file).read_text()
        defined = set(re.findall(r"^ *(?:def |class )?(\w+)", text, re.MULTILINE))
        gone |= {f"{file}: {name}" for name in _CODE.findall(names) if name not in defined}
    return sorted(gone)


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

    gone = [module for module in modules if find_spec(module) is None]
    assert gone == []


@pages
def test_every_setting_exists(page: Path) -> None:
    found = [match.groups() for word in _code_words(page) if (match := _SETTING.match(word))]

    assert [(section, key) for section, key in found if key not in SETTINGS[section] | VALUES.get(section, {})] == []


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


def test_each_test_that_shows_a_bound_exists() -> None:
    """The table of all that grows has one in each row."""
    page = (REPOSITORY / "tests/bounds.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")][1:]
    named = [re.fullmatch(r" `(test_\w+)` ", row[3]) for row in rows]
    files = chain((REPOSITORY / "tests").rglob("test_*.py"), (REPOSITORY / "extras").glob("*/tests/**/test_*.py"))
    defined = {name for file in files for name in _TEST.findall(file.read_text())}

    assert len(rows) > 30
    assert all(named)
    assert [found[1] for found in named if found and found[1] not in defined] == []


@pages
def test_prose_has_clear_words(page: Path) -> None:
    prose = re.sub(r"^#.*$", "", _CODE.sub("`code`", _prose(page)), flags=re.MULTILINE)
    blocks = re.split(r"\n\n|\n(?=[*|\d])", prose) if page.name != "CHANGELOG.md" else []

    assert [found for block in blocks for found in unclear(" ".join(block.strip("*| ").split()))] == []


@pages
def test_a_cell_of_a_table_has_120_characters_at_most(page: Path) -> None:
    rows = [line for line in _prose(page).splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]

    assert [cell for cell in cells if len(cell) > 120] == []


@pages
def test_a_guide_answers_six_questions_in_one_order(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", _prose(page), re.MULTILINE)
    if headings[:1] == ["What"]:
        assert headings[:3] == ["What", "When", "How"]
        assert headings == [section for section in _SECTIONS if section in headings]


def test_sizing_has_the_figures_of_the_latest_report() -> None:
    report, sizing = ((REPOSITORY / page).read_text() for page in ("extras/lab/README.md", "docs/sizing.md"))
    rates = re.findall(r"^\| [124] \| ([\d ]+) /s \|", report, re.MULTILINE)
    micros = [round(2e6 / int(rate.replace(" ", ""))) for rate in rates]
    ((ratio, enforce),) = re.findall(r"Java not warm \| ([\d.]+) of ([\d ]+) decisions/s", report)
    audit = round(2e6 / (float(ratio) * int(enforce.replace(" ", ""))))

    assert f"| {', '.join(map(str, micros))} core-µs | two cores over {', '.join(rates)} requests/s |" in sizing
    assert f"| {audit} core-µs | two cores over {ratio} of {enforce} decisions/s" in sizing
    assert f"{micros[0]} µs to decide, {audit} µs to record" in sizing
    rows = re.findall(r"^\| ([\d ]+) \| ([\d ]+) \| [\d ]+ \| (\d+) \| (\d+) \| ([\w ]+) \|", sizing, re.MULTILINE)
    for requests, entities, jobs, cores, pages in rows:
        rate, stored = (int(number.replace(" ", "")) / int(jobs) for number in (requests, entities))
        count = 16_384 if pages != "default" else min(4_096, 2 ** math.ceil(math.log2(stored / 256)))
        charged = 1 - (1 - 1 / count) ** (rate * 2 * 2)
        busy = rate * micros[1] + stored * charged * 1.1 / 2 + rate * audit
        assert int(cores) == math.ceil(busy / 1e6 / 0.5), requests


@pages
def test_every_name_of_the_code_exists(page: Path) -> None:
    if page.name != "CHANGELOG.md" and page.parent.name != "decisions":  # which tell of former names
        assert _gone_names(page) == []


def test_what_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`state/store/no_such_codec.py`, `no_such_file.py`, and:\n\n```console\n$ ./scripts/no-such\n```\n")

    assert _gone_paths(page) == ["state/store/no_such_codec.py", "scripts/no-such"]
    assert _gone_file_names(page) == ["no_such_file.py"]
    page.write_text("`no_such_name`, `NoSuchClass()`, `state/errors.py` (`SluiceError`, `Gateway`)\n")
    assert _gone_names(page) == ["NoSuchClass", "no_such_name", "state/errors.py: Gateway"]
