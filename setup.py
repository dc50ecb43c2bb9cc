"""Check of the sources before a build. All that describes the package is in pyproject.toml."""

from pathlib import Path

from setuptools import setup

parts = sorted(str(path) for path in Path("sluice").iterdir() if path.is_file() and not path.suffix)
if parts:  # the wheel would have nothing but sluice/__init__.py
    raise SystemExit(
        f"sluice: {', '.join(parts)} should be symbolic links to folders, but are files: git made no links in it;"
        " expected `git config core.symlinks true`, then `git checkout -- sluice` (in Windows with developer mode)"
    )
setup()
