"""Runs the notebooks of docs/examples, without Jupyter."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest


def run_cells(notebook: Path, printed: pytest.CaptureFixture[str], **named: str | int) -> list[Any]:
    """The output of each code cell: the value of its last expression, else what it prints.

    `named` are values that the first cell assigns, as a user would change them.
    """
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells):
        body = ast.parse("".join(cell["source"])).body
        for each in body if number == 0 else []:
            if isinstance(each, ast.Assign) and isinstance(name := each.targets[0], ast.Name) and name.id in named:
                each.value = ast.copy_location(ast.Constant(named[name.id]), each.value)
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        assert last is None or isinstance(last, ast.Expr)
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)  # noqa: S102 - our own notebook
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if last else None  # noqa: S307
        shown.append(printed.readouterr().out if value is None else value)
    return shown
