"""The errors of gateways."""

from sluice.state.errors import SluiceError


class GatewayClosedError(SluiceError):
    """A request was given to a gateway that is closed."""


class InvalidOptionError(SluiceError, ValueError):
    """An option of a gateway has a value that it doesn't accept."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"option {option} is {repr(value)[:200]}; expected {expected}")
        self.option = option
