"""The versions that a list of jars and a pom name."""

import xml.etree.ElementTree as ElementTree

from sluice.jvm.jars import REPOSITORY, JarSet


def versions_of(jar_set: JarSet) -> dict[str, str]:
    """Artifact -> version."""
    tree = ElementTree.parse(jar_set.versions)  # noqa: S314 - our own file
    return {found.attrib["name"]: found.attrib["rev"] for found in tree.iter("dependency")}


def versions_of_pom(folder: str) -> dict[str | None, str | None]:
    """Artifact -> version, of the dependencies."""
    pom = ElementTree.parse(REPOSITORY / folder / "pom.xml")  # noqa: S314 - our own file
    return {each[1].text: each[2].text for each in pom.iter("{http://maven.apache.org/POM/4.0.0}dependency")}
