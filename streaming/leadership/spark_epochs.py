"""The epochs in the headers of Kafka records, as Spark reads them."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from sluice.state.decisions.leader_epochs import HEADER


def epoch_header() -> Column:
    """The value of the last header of the column `headers` that has the epoch's name; null if there is none."""
    return F.element_at(F.filter("headers", lambda header: header.key == HEADER), -1).value
