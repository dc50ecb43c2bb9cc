"""Groups of command line options that several commands share: each group is a dataclass."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A Typer command whose parameters of a dataclass type are replaced by that dataclass's fields.

    The fields are annotated as Typer's parameters are, and have defaults.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)  # noqa: S101 - for mypy: is_dataclass is true for instances too
        groups[name] = kind
        field_hints = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field_hints[field.name]
            )
            for field in fields(kind)
        ]

    def run(**values: Any) -> None:
        arguments = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**arguments, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # how inspect finds it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
