"""Makes the moving picture of the README: the terminal of `sluice demo --brokers 3` above its console.

`python -m scripts.scenarios.picture [--out FILE]`, after `python -m scripts.testbed.browser`.
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
from scripts.testbed.browser import running_browser
from sluice.cli.demo.job import RunError, wait_until
from sluice.cli.demo.processes import Child
from sluice.cli.demo.work_folder import work_folder

_FRAMES = 24
_FRAME_S = 1.0
_SHOWN_MS = 500
_START_S = 400.0
_STOP_S = 120
_SIZE = (960, 420)
_TERMINAL = (960, 120)
_LINES = 5
_COLOURS = 64
_STYLE = "margin:0;padding:10px;background:#1b1f24;color:#d6dde4;font:13px/19px monospace;white-space:pre"
_CONSOLE = re.compile(r"in a browser: (\S+)")


@dataclass(frozen=True)
class PictureOptions:
    """Run three brokers with clients at full speed, and record the terminal and the console as a GIF."""

    out: Annotated[Path, typer.Option(help="File of the picture.")] = Path("docs/images/brokers.gif")


def record(options: PictureOptions) -> int:
    """Record it. Raises RunError if the demo doesn't start, and BrowserError."""
    with work_folder("picture", fresh=True) as folder, _demo(folder / "output") as url, running_browser() as browser:
        console, terminal = (browser.new_page(viewport={"width": w, "height": h}) for w, h in (_SIZE, _TERMINAL))
        console.goto(url)
        frames = list(_frames(console, terminal, folder / "output"))
    first, *others = frames
    first.save(options.out, save_all=True, append_images=others, duration=_SHOWN_MS, loop=0, optimize=True)
    print(f"{options.out}: {len(frames)} pictures, {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


@contextmanager
def _demo(output: Path) -> Iterator[str]:
    """A running demo with brokers, whose clients get figures; gives the address of its console."""
    child = Child([sys.executable, "-m", "sluice.cli.main", "demo", "--brokers", "3", "--fresh"], output)

    def shows() -> bool:
        if not child.alive:
            raise RunError(f"the demo has ended; see {output}")
        return bool(_CONSOLE.search(output.read_text())) and "shares: broker" in output.read_text()

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
