"""Makes all that a checkout needs beside packages: native library, jars, archives of their classes, Sluice's own jars.

`python -m scripts.prepare`, which ./scripts/setup runs, does so in one process: several would each take a third of a
second just to find that all is there. With `--demo` it leaves out what `sluice demo` doesn't start: the archive of a
proxy, and the jars of shared storage and telemetry.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from scripts.java.build import build_jars
from sluice.jvm.class_archive import SPARK_CLASSES, ArchivedClasses
from sluice.jvm.jars import SPARK_JARS, JarSet
from sluice.process.processes import SAID_S
from sluice.state.errors import SluiceError
from sluice_demo.broker import first_features
from sluice_demo.jars import BROKER_CLASSES, BROKER_JARS
from sluice_native import build as native
from sluice_proxy.jars import PROXY_CLASSES, PROXY_JARS


def prepare(archives: Sequence[ArchivedClasses], *, is_whole: bool) -> None:
    """Make what is missing, of archives these, and unless `is_whole` only the jars that `sluice demo` needs.

    Raises JavaBuildError, JarError and JavaError.
    """
    with ThreadPoolExecutor() as pool:
        library = pool.submit(native.main)
        # together: the registry's answers take the time, not bytes
        list(pool.map(JarSet.paths, (SPARK_JARS, BROKER_JARS, PROXY_JARS)))
        made = [pool.submit(classes.make) for classes in archives] + [pool.submit(first_features, BROKER_JARS)]
        build_jars(is_whole=is_whole)
        while wait([library], timeout=SAID_S).not_done:  # all other steps say themselves how far they are
            print("setup: compiling the native library", file=sys.stderr, flush=True)
        for step in (library, *made):
            step.result()


if __name__ == "__main__":
    is_whole = "--demo" not in sys.argv
    try:
        prepare([SPARK_CLASSES, BROKER_CLASSES, *([PROXY_CLASSES] if is_whole else [])], is_whole=is_whole)
    except SluiceError as error:
        sys.exit(f"setup: {error}")
