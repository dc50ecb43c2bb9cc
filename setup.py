"""Parts of the package's metadata that depend on where the repository is; all else is in pyproject.toml.

SLUICE_REPOSITORY is the address of the repository at a forge. With it the metadata has the project's URLs, and the
description the README with whole links; without it, as in a checkout, no URLs and the README as it is.
"""

import os
import re
from pathlib import Path

from setuptools import setup

parts = sorted(str(path) for path in Path("sluice").iterdir() if path.is_file() and not path.suffix)
if parts:  # the wheel would have nothing but sluice/__init__.py
    raise SystemExit(
        f"sluice: {', '.join(parts)} should be symbolic links to folders, but are files: git made no links in it;"
        " expected `git config core.symlinks true`, then `git checkout -- sluice` (in Windows with developer mode)"
    )

readme, urls = Path("README.md").read_text(encoding="utf-8"), {}
if repository := os.environ.get("SLUICE_REPOSITORY"):
    tag = os.environ.get("SLUICE_TAG", "main")
    readme = re.sub(r"(!\[[^\]]*\])\((?!\w+:|#)", rf"\1({repository}/raw/{tag}/", readme)
    readme = re.sub(r"(?<!!)(\[[^\]]*\])\((?!\w+:|#)", rf"\1({repository}/blob/{tag}/", readme)
    urls = {
        "Documentation": f"{repository}/blob/{tag}/docs/README.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
    }

setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
)
