"""The wheel needs sluice-kafka in its own version, and has the library where that can be built.

The engine of another release is never used, so an update of one has to bring the other. The library is for the
platform of SLUICE_NATIVE_TARGET, such as aarch64-linux-gnu.2.17, without it for this one. With the target "none", and
where the library can't be built, the wheel has none.
"""

import os
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_platform

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.egg_info import egg_info


class Metadata(egg_info):
    """With the one dependency."""

    def finalize_options(self):
        super().finalize_options()
        self.distribution.install_requires = [f"sluice-kafka[core]=={self.distribution.get_version()}"]
        self.distribution.metadata.install_requires = self.distribution.install_requires


class Wheel(bdist_wheel):
    """The wheel of one platform and every Python, or of all platforms without a native library."""

    def finalize_options(self):
        super().finalize_options()
        target, self.platform = os.environ.get("SLUICE_NATIVE_TARGET", ""), None
        spec = spec_from_file_location("native_build", Path("sluice_native/build.py"))
        native_build = module_from_spec(spec)
        spec.loader.exec_module(native_build)
        of_package = self.distribution.package_data["sluice_native"]
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


setup(cmdclass={"bdist_wheel": Wheel, "egg_info": Metadata})
