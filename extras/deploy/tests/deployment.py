"""The files by which Sluice is deployed and watched, and what their command lines mean."""

import json
import re
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from sluice.jvm.jars import REPOSITORY

DEPLOY = REPOSITORY / "extras" / "deploy"
EXAMPLES = REPOSITORY / "docs" / "examples"
RULES = EXAMPLES / "prometheus-rules.yaml"
DASHBOARD = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())


def dockerfile(instruction: str) -> list[str]:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.removeprefix(instruction).strip() for line in lines if line.startswith(instruction + " ")]


def locked(path: Path) -> dict[str, str]:
    """Package to its whole entry: version, marker and hashes."""
    entries = re.split(r"\n(?=\S)", path.read_text())
    return {entry.partition("==")[0]: entry.strip() for entry in entries if not entry.startswith("#")}


def parse_command(command: Any, arguments: list[str]) -> None:
    """Parse as the command line does, without running anything. Raises TyperException."""
    context = command.make_context("sluice", list(arguments))
    if isinstance(command, TyperGroup):
        _, inner, rest = command.resolve_command(context, list(arguments))
        parse_command(inner, rest)
