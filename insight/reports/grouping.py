"""Groupings of usage: by name and by period."""

from enum import StrEnum


class By(StrEnum):
    """The name of a row."""

    USER = "user"
    CLIENT = "client"
    TENANT = "tenant"
    TOPIC = "topic"


class Per(StrEnum):
    """The length of a period; days are those of UTC."""

    HOUR = "hour"
    DAY = "day"
