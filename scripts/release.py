"""`./scripts/release`: the files of a release. .github/workflows/release.yml runs it on a tag, and then publishes them.

Without `--tag` it is a dry run: the same files, of the version 0.0.0. Signing and publishing are steps of the workflow.
"""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from scripts.command import run_command
from scripts.java.build import build_jars
from sluice.jvm.jars import REPOSITORY, SPARK_JARS, JarSet
from sluice.jvm.plugin import JAR_NAME, plugin_jar
from sluice.state.contract.records import RELEASE
from sluice.state.errors import SluiceError
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.distribution import EXTRAS, build_extra, build_wheel
from sluice_lab.testbed.helm import CHART, helm
from sluice_lab.testbed.processes import output_of
from sluice_proxy.jars import PROXY_JARS
from sluice_shared_storage.jars import S3_JARS

CHANGELOG = REPOSITORY / "CHANGELOG.md"
RELEASED_JARS = (SPARK_JARS, S3_JARS, PROXY_JARS, BROKER_JARS)
NATIVE_TARGETS = ("x86_64-linux-gnu.2.17", "aarch64-linux-gnu.2.17")
"""Platforms, as Zig names them, whose wheels have the native code."""

_DRY_VERSION = "0.0.0"
_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:rc\d+)?)")


class ReleaseError(SluiceError):
    """A release can't be made of this checkout."""


@dataclass(frozen=True)
class ReleaseOptions:
    """Make the files of a release: wheel, sdist, plugin jar, chart, bill of materials, checksums and text."""

    tag: Annotated[str | None, typer.Option(metavar="vX.Y.Z", help="Tag of the release; without it a dry run.")] = None
    out: Annotated[Path, typer.Option(help="Folder for the files, which is emptied.")] = Path("dist")
    repository: Annotated[
        str | None, typer.Option(metavar="URL", help="The repository's address, for links in the metadata.")
    ] = None
    image: Annotated[str, typer.Option(metavar="NAME", help="The image that the chart names, without a tag.")] = (
        "sluice"
    )


def release(options: ReleaseOptions) -> int:
    """Make the files. Raises ReleaseError, BuildError, HelmError, JarError, JavaError and JavaBuildError."""
    version = _DRY_VERSION if options.tag is None else version_of(options.tag)
    text = release_text(CHANGELOG.read_text(), None if options.tag is None else version)
    out = options.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    (out / "python").mkdir(parents=True)
    variables = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA": version, "SLUICE_TAG": options.tag or "main"}
    if options.repository:
        variables["SLUICE_REPOSITORY"] = options.repository
    build_jars()
    build_wheel(out / "python", variables, through_sdist=True)
    for extra in EXTRAS:
        of_extra = {f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA_{extra.upper()}": version}
        build_extra(extra, out / "python", {**of_extra, "SLUICE_NATIVE_TARGET": "none"}, through_sdist=True)
    of_native = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SLUICE_KAFKA_NATIVE": version}
    for target in NATIVE_TARGETS:  # the wheel before is for all others
        with TemporaryDirectory(prefix="sluice-wheel-") as folder:
            wheel = build_extra("native", Path(folder), {**of_native, "SLUICE_NATIVE_TARGET": target})
            shutil.move(wheel, out / "python")
    _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(map(str, (out / "python").iterdir())))
    shutil.copy(plugin_jar(), out / JAR_NAME.replace(".jar", f"-{version}.jar"))
    package_chart(version, options.image, out)
    (out / f"sluice-{version}.cdx.json").write_text(json.dumps(bill_of_materials(version), indent=1))
    (out / "release.md").write_text(text)
    (out / "SHA256SUMS").write_text("".join(checksum_lines(out)))
    for path in sorted(out.rglob("*.*")):
        print(f"{path.stat().st_size:>10}  {path.relative_to(out)}")
    return 0


def version_of(tag: str) -> str:
    """The version of a tag. Raises ReleaseError.

    >>> version_of("v0.2.0"), version_of("v0.2.0rc1")
    ('0.2.0', '0.2.0rc1')
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ReleaseError(f"the tag is {tag!r}; expected one such as v1.2.3 or v1.2.3rc1")
    if match[1].partition("rc")[0] != RELEASE:
        raise ReleaseError(f"the tag is of {match[1]}, and plugins would say {RELEASE}; change RELEASE in the code")
    return match[1]


def release_text(changelog: str, version: str | None) -> str:
    """The section of a version in the changelog, without its heading; None is what is not released.

    A release candidate has the section of its release. Raises ReleaseError if there is none, or nothing in it.

    >>> release_text("# Changelog\\n\\n## [1.0.0] - 2026-01-01\\n\\n- First.\\n\\n## [0.9.0]\\n", "1.0.0rc1")
    '- First.\\n'
    """
    name = "Unreleased" if version is None else version.partition("rc")[0]
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if re.fullmatch(rf"\[{re.escape(name)}\](?: - \d{{4}}-\d\d-\d\d)?", heading) and text.strip():
            return text.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section [{name}] with a text; expected `## [{name}] - YYYY-MM-DD`")


def package_chart(version: str, image: str, out: Path) -> Path:
    """The chart of a version, whose pods have this image, in the folder `out`. Raises HelmError, LockedPythonError."""
    with TemporaryDirectory(prefix="sluice-chart-") as folder:
        chart = Path(shutil.copytree(CHART, Path(folder, "sluice")))
        values = chart / "values.yaml"
        values.write_text(values.read_text().replace("  repository: sluice\n", f"  repository: {image}\n"))
        of_release = ("--version", chart_version(version), "--app-version", version)
        helm("package", str(chart), *of_release, "--destination", str(out))
    return out / f"sluice-{chart_version(version)}.tgz"


def chart_version(version: str) -> str:
    """The version as semantic versioning spells it, which Helm requires.

    >>> chart_version("1.2.3"), chart_version("1.2.3rc1")
    ('1.2.3', '1.2.3-rc.1')
    """
    return version.replace("rc", "-rc.")


def bill_of_materials(version: str) -> Mapping[str, Any]:
    """CycloneDX: the packages that the image locks, and the jars of image and demo. Raises ReleaseError."""
    lock, project = REPOSITORY / "extras" / "deploy" / "requirements.lock", REPOSITORY / "pyproject.toml"
    made = _run(
        *(sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--short-PURLs"),
        *("--mc-type", "application", "--pyproject", str(project), str(lock)),
    )
    bill: dict[str, Any] = json.loads(made)
    bill["metadata"]["component"]["version"] = version
    bill["components"] += [component for jars in RELEASED_JARS for component in jar_components(jars)]
    return bill


def jar_components(jars: JarSet) -> Iterator[dict[str, Any]]:
    """A set's jars as components, with the checksums that an install verifies and the names that advisories use."""
    for line in jars.checksums.read_text().splitlines():
        digest, path = line.split()
        group, artifact, version, name = path.split("/")
        yield {
            "type": "library",
            "bom-ref": f"{jars.name}/{name}",
            "group": group,
            "name": artifact,
            "version": version,
            "purl": f"pkg:maven/{group}/{artifact}@{version}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }


def checksum_lines(folder: Path) -> Iterator[str]:
    """A line of `sha256sum` for each file of the release below the folder."""
    for path in sorted(folder.rglob("*.*")):
        if path.suffix != ".md":
            yield f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"


def _run(*command: str) -> str:
    """Standard output of a command. Raises ReleaseError with its last line."""
    return output_of(command, ReleaseError, f"{' '.join(command[:4])} fails: {{}}", cwd=REPOSITORY)


if __name__ == "__main__":
    sys.exit(run_command("release", ReleaseOptions, release))
