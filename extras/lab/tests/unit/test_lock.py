"""The lock has what pyproject.toml and each extra ask for."""

import re
import tomllib
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sluice.jvm.jars import REPOSITORY


def test_the_lock_has_a_hash_for_every_package_and_names_no_host() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    entries = re.split(r"^(?=\w)", lock, flags=re.MULTILINE)[1:]

    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in lock


def test_the_lock_has_a_version_of_everything_that_pyproject_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    asked = [*project["project"]["dependencies"], *groups["dev"], *groups["docs"]]
    asked += chain.from_iterable(project["project"]["optional-dependencies"].values())
    for of_extra in (REPOSITORY / "extras").glob("*/pyproject.toml"):
        asked += tomllib.loads(of_extra.read_text())["project"].get("dependencies", ())
    lock = (REPOSITORY / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))

    for requirement in (each for each in map(Requirement, asked) if not each.name.startswith("sluice-kafka")):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{version} is not {requirement}; run ./scripts/lock"
