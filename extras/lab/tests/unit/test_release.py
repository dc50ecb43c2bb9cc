"""A release: its text, its bill of materials, and workflows that are pinned and run what is there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts.java.build import PLUGIN
from scripts.release import (
    CHANGELOG,
    RELEASED_JARS,
    ReleaseError,
    jar_components,
    package_chart,
    release_text,
    version_of,
)
from sluice.jvm.jars import REPOSITORY
from sluice.jvm.java import NEWEST, OLDEST
from sluice.state.contract.records import RELEASE
from sluice_lab.testbed.helm import helm

WATCHED = "{kafka: {bootstrapServers: 'kafka:9093'}, monitoring: {alerts: true}}"
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-rc1", "v1.2.3.dev4"])
def test_a_tag_that_is_no_version_is_refused(tag: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(f"the tag is '{tag}'; expected one such as v1.2.3")):
        version_of(tag)


def test_a_tag_of_another_release_than_heartbeats_name_is_refused() -> None:
    """Both codecs name it: doctor would call new plugins old, or old ones new."""
    assert f'RELEASE = "{RELEASE}";' in (PLUGIN.sources[0] / "sluice" / "kafka" / "Events.java").read_text()
    assert version_of(f"v{RELEASE}rc1") == f"{RELEASE}rc1"
    with pytest.raises(ReleaseError, match=f"the tag is of 0.1.0, and plugins would say {RELEASE}; change RELEASE in"):
        version_of("v0.1.0")


def test_the_text_of_a_release_is_its_section_of_the_changelog() -> None:
    text = release_text(CHANGELOG.read_text(), None)

    assert text.startswith("### ") or text[0].isupper() or text[0].isdigit() or text[0] == "-"
    assert "\n## " not in text
    assert release_text(f"## [0.2.0] - 2026-12-01\n\n{text}", "0.2.0rc1") == text


@pytest.mark.parametrize("changelog", ["## [1.2.3] - 2026-01-01\n\n## [1.2.2]\n\n- x\n", "## [1.2.30]\n\n- x\n", ""])
def test_a_release_without_a_text_is_refused(changelog: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape("no section [1.2.3] with a text")):
        release_text(changelog, "1.2.3")


def test_the_bill_of_materials_has_each_jar_with_its_version_and_checksum() -> None:
    components = {each["bom-ref"]: each for jars in RELEASED_JARS for each in jar_components(jars)}
    versions = {each["name"]: each["version"] for each in components.values()}

    assert len(components) == sum(len(jars.expected()) for jars in RELEASED_JARS)
    assert versions["delta-spark_4.2_2.13"] == "4.4.0"
    assert versions["spark-sql-kafka-0-10_2.13"] == "4.2.0"
    assert versions["zstd-jni"] == "1.5.6-10"
    assert all(re.fullmatch(r"\d+\.[\d.]+\S*", version) for version in versions.values())
    assert components["spark/delta-spark_4.2_2.13-4.4.0.jar"]["purl"] == "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0"
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in components.values())


def test_the_chart_of_a_release_has_its_version_and_its_image(tmp_path: Path) -> None:
    package = package_chart("1.2.3rc1", "registry.example/sluice", tmp_path)
    made = helm("template", "sluice", str(package), "--set=kafka.bootstrapServers=kafka:9093")

    assert package.name == "sluice-1.2.3-rc.1.tgz"
    assert set(re.findall(r"image: (\S+)", made)) == {"registry.example/sluice:1.2.3rc1"}
    assert "sluice-clients" in helm("template", "sluice", str(package), "--values=-", values=WATCHED)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_digest_with_its_version_beside_it(workflow: Path) -> None:
    uses = re.findall(r"uses: (.+)", workflow.read_text())

    assert uses
    assert [each for each in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_the_workflows_have_no_known_fault() -> None:
    audit = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [audit, "--offline", "--quiet", *WORKFLOWS], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_lane_is_a_job_of_ci_on_the_oldest_and_the_newest_python_and_java() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    nightly = [jobs.pop(name)["if"] for name in ("newest", "release")]  # no lanes: what isn't supported yet, a dry run
    assert nightly == ["github.event_name == 'schedule'"] * 2
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    versions = {name: job["strategy"]["matrix"] for name, job in jobs.items()}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    both = {"include": [{"python": pythons[0], "java": str(OLDEST)}, {"python": pythons[-1], "java": str(NEWEST)}]}

    assert project["requires-python"] == f">={pythons[0]}"
    assert commands == {lane: [f"./scripts/{lane}"] for lane in ("check", "test", "test-long")}
    assert versions == {"check": {"python": [pythons[0], pythons[-1]]}, "test": both, "test-long": both}
    assert [name for name, job in jobs.items() if "if" in job] == ["test-long"]


def test_nothing_is_published_before_the_files_of_a_release_were_tried() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    later = {"trial"}
    for _ in jobs:  # whatever the order in which they stand there
        later |= {name for name, job in jobs.items() if later & set(re.findall(r"\w+", str(job.get("needs"))))}

    assert jobs["trial"]["steps"][-2]["run"] == "./scripts/try-release"
    assert jobs.keys() - later == {"files"}


def test_what_a_change_has_to_pass_is_the_checks_and_then_all_tests() -> None:
    lines = (REPOSITORY / ".ci" / "run").read_text().splitlines()

    assert lines[-2:] == ['run "" ./scripts/check --no-tests', "instead ./scripts/test"]


def test_a_workflow_names_files_that_are_there() -> None:
    for workflow in WORKFLOWS:
        steps = [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]
        commands = " ".join(step.get("run", "") for step in steps)
        named = re.findall(r"(?:\./)?((?:\.ci|\.github|scripts|extras)/[\w./-]+)", commands)

        assert named
        assert [name for name in named if not (REPOSITORY / name).exists()] == []
