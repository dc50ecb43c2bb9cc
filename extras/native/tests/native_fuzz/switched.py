"""The same micro-batch with native code, and without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from sluice.configs.settings import Settings
from sluice_demo.job import storage_in, write_settings
from sluice_native.library import NativeCode, native_code

REASONS = ("turned off", "not built")
"""The reasons for which Python does all in `with_or_without`."""


@contextmanager
def with_or_without(folder: Path, reason: str, of: type, step: str, *, native: bool) -> Iterator[Settings]:
    """Settings of a job with native code, or without it for this reason; the native `step` of a class fails then."""
    (own := folder / str(native)).mkdir()
    chosen: dict[str, dict[str, object]] = {
        "state": {"pages": 8},
        "enforce": {"native": native or reason == "not built"},
    }
    code = native_code() if native else NativeCode(None, reason="not built")
    with (
        patch("sluice_native.library.native_code", lambda: code),
        patch.object(of, step, getattr(of, step) if native else None),
    ):
        yield write_settings(own / "settings.yaml", storage_in(own), chosen)
