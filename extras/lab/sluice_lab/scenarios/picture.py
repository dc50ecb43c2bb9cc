"""Makes the pictures of the pages: terminal and console of `sluice demo --brokers 3`, and the console of `sluice demo`.

`python -m sluice_lab.scenarios.picture [--out FOLDER]`, after `python -m sluice_lab.testbed.browser`.
"""

import html
import io
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from playwright.sync_api import Page

from scripts.command import run_command
from sluice_demo.job import RunError, wait_until
from sluice_demo.work_folder import work_folder
from sluice_lab.testbed.browser import running_browser
from sluice_proxy.processes import Child

_FRAMES = 24
_FRAME_S = 1.0
_SHOWN_MS = 500
_START_S = 400.0
_STOP_S = 120
_SIZE = (960, 420)
_TERMINAL = (960, 120)
_STILLS = {
    "console-clients.png": ("", (1280, 600)),
    "console-client.png": ("client?user=alice&client_id=reporting", (1280, 760)),
}
"""File -> the page of the console of a small load, and its size."""
_LOAD_S = 200.0
"""Age of the load in the stills: charts have some minutes."""
_LINES = 5
_COLOURS = 64
_STYLE = "margin:0;padding:10px;background:#1b1f24;color:#d6dde4;font:13px/19px monospace;white-space:pre"
_CONSOLE = re.compile(r"in a browser: (\S+)")


@dataclass(frozen=True)
class PictureOptions:
    """Run the demos, and record terminal and console of three brokers as a GIF, and pages of the console."""

    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/images")


def record(options: PictureOptions) -> int:
    """Record them. Raises RunError if a demo doesn't start, and BrowserError."""
    with work_folder("picture", fresh=True) as folder, running_browser() as browser:
        output, moving = folder / "brokers.log", options.out / "brokers.gif"
        with _demo(output, "shares: broker", "--brokers", "3") as url:
            console, terminal = (browser.new_page(viewport={"width": w, "height": h}) for w, h in (_SIZE, _TERMINAL))
            console.goto(url)
            first, *others = _frames(console, terminal, output)
        first.save(moving, save_all=True, append_images=others, duration=_SHOWN_MS, loop=0, optimize=True)
        print(f"{moving}: {1 + len(others)} pictures, {moving.stat().st_size / 1e6:.1f} MB")
        with _demo(folder / "load.log", "waits as told") as url:
            time.sleep(_LOAD_S)
            for name, (path, (width, height)) in _STILLS.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(url + path)
                page.locator("#status", has_text="Live").wait_for()
                page.screenshot(path=options.out / name)
                print(options.out / name)
    return 0


@contextmanager
def _demo(output: Path, sign: str, *options: str) -> Iterator[str]:
    """A running demo that has printed the sign of a load; gives the address of its console."""
    child = Child([sys.executable, "-m", "sluice.cli.main", "demo", "--fresh", *options], output)

    def shows() -> bool:
        if not child.alive:
            raise RunError(f"the demo has ended; see {output}")
        return bool(_CONSOLE.search(output.read_text())) and sign in output.read_text()

    try:
        wait_until(shows, _START_S)
        found = _CONSOLE.search(output.read_text())
        assert found is not None  # noqa: S101 - for mypy
        yield found[1]
    finally:
        child.end(signal.SIGINT, _STOP_S)


def _frames(console: Page, terminal: Page, output: Path) -> Iterator[Image.Image]:
    for _ in range(_FRAMES):
        lines = ["$ sluice demo --brokers 3", *output.read_text().splitlines()[1 - _LINES :]]
        terminal.set_content(f'<body style="{_STYLE}">{html.escape(chr(10).join(lines))}</body>')
        yield _above(terminal.screenshot(), console.screenshot())
        time.sleep(_FRAME_S)


def _above(upper: bytes, lower: bytes) -> Image.Image:
    """One picture of two, in few colours."""
    parts = [Image.open(io.BytesIO(part)) for part in (upper, lower)]
    whole = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)))
    whole.paste(parts[0], (0, 0))
    whole.paste(parts[1], (0, parts[0].height))
    return whole.quantize(_COLOURS)


if __name__ == "__main__":
    sys.exit(run_command("picture", PictureOptions, record))
