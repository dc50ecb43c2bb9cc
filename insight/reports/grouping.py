"""How usage is grouped: whose it is, and by which period."""

from enum import StrEnum


class By(StrEnum):
    """Whose usage a row has."""

    USER = "user"
    CLIENT = "client"
    TENANT = "tenant"
    TOPIC = "topic"


class Per(StrEnum):
    """The length of a period; days are those of UTC."""

    HOUR = "hour"
    DAY = "day"
