"""Completion of commands and options, by what each shell runs."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SLUICE = Path(sys.executable).with_name("sluice")
"""The program, whose name the functions of shells have."""


@cache
def said(**variables: str) -> str:
    """Output of the program for a shell that asks it for completions."""
    environment = os.environ | variables
    return subprocess.run([SLUICE], env=environment, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("sluice to", ["topics", "top"]),
        ("sluice quotas ho", ["hold"]),
        ("sluice top --so", ["--sort"]),
        ("sluice quotas hold --rea", ["--reason"]),
    ],
)
def test_bash_completes_commands_their_commands_and_options(words: str, completed: list[str]) -> None:
    """By the function that --install-completion gives to bash, run by bash."""
    function = said(_SLUICE_COMPLETE="source_bash")
    asks = f"{function}\nCOMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _sluice_completion sluice\n"
    path = f"{SLUICE.parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        [str(shutil.which("bash")), "-c", f'{asks} printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert sorted(shown.stdout.split()) == sorted(completed)


@pytest.mark.parametrize(
    ("shell", "variables", "answer"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "sluice quotas ho"}, '"hold"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "sluice quotas ho", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "hold\t"),
    ],
)
def test_zsh_and_fish_get_their_own_functions_and_answers(shell: str, variables: dict[str, str], answer: str) -> None:
    assert f"complete_{shell}" in said(_SLUICE_COMPLETE=f"source_{shell}")
    assert answer in said(_SLUICE_COMPLETE=f"complete_{shell}", **variables)
