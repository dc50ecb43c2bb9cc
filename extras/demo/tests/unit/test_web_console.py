"""The web console beside `sluice demo`."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from sluice_demo.job import wait_until
from sluice_demo.screen import WebConsole
from tests.web import answers


def test_it_answers_at_the_address_that_it_says_and_ends_with_the_run(tmp_path: Path) -> None:
    """Also while no broker answers."""
    settings, said = tmp_path / "settings.yaml", StringIO()
    settings.write_text("kafka: {bootstrap.servers: '127.0.0.1:1'}\nhealth: {port: 0}\n")
    web = WebConsole(tmp_path, settings)

    for _ in range(2):
        web.keep(Console(file=said, width=200))
    wait_until(lambda: answers(web.url), 120)
    web.stop()

    assert said.getvalue() == f"who is throttled, in a browser: {web.url}\n"
    assert not answers(web.url)


def test_a_console_that_ends_says_why_once(tmp_path: Path) -> None:
    """And the run goes on."""
    settings, said = tmp_path / "settings.yaml", StringIO()
    settings.write_text("no settings")
    web, console = WebConsole(tmp_path, settings), Console(file=said, width=400)

    wait_until(lambda: web.keep(console) or "ended" in said.getvalue(), 120)  # type: ignore[func-returns-value]
    web.keep(console)
    web.stop()

    assert said.getvalue().count("the console ended: sluice: error: ") == 1
