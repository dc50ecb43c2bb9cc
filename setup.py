"""Parts of the package's metadata that depend on where the repository is; all else is in pyproject.toml.

SLUICE_REPOSITORY is the address of the repository at a forge. With it the metadata has the project's URLs, and the
description the README with whole links; without it, as in a checkout, no URLs and the README as it is.

The wheel has the native code's library where that can be built, for the platform of SLUICE_NATIVE_TARGET, such as
aarch64-linux-gnu.2.17, without it for this one. With the target "none", and where it can't be built, it has none.
"""

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_platform

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

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


class Wheel(bdist_wheel):
    """The wheel of one platform and every Python, or of all platforms without a native library."""

    def finalize_options(self):
        super().finalize_options()
        target, self.platform = os.environ.get("SLUICE_NATIVE_TARGET", ""), None
        spec = spec_from_file_location("native_build", Path("sluice/streaming/native/build.py"))
        native_build = module_from_spec(spec)
        spec.loader.exec_module(native_build)
        of_package = self.distribution.package_data["sluice.streaming.native"]
        of_package[:] = [name for name in of_package if not name.startswith("built/")]  # of other platforms, too
        if target == "none":
            return
        try:
            of_package.append(f"built/{native_build.build(target).name}")
        except native_build.NativeBuildError as error:
            if target:
                raise SystemExit(f"sluice: the native code can't be built: {error}") from error
            print(f"sluice: no native code, so Python plans and decides all events: {error}", file=sys.stderr)
        else:
            machine, _, libc = target.partition("-")
            platform = f"manylinux_{libc.partition('.')[2]}_{machine}" if target else get_platform()
            self.platform = re.sub("[-.]", "_", platform)

    def get_tag(self):
        return super().get_tag() if self.platform is None else ("py3", "none", self.platform)


setup(
    cmdclass={"bdist_wheel": Wheel},
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
)
