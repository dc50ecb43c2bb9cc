"""The epochs in the headers of Kafka records, as Spark reads them, and which records don't count because of them."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.state.decisions.leader_epochs import HEADER, EpochSpan, FencedFrom, read_epoch


def epoch_header() -> Column:
    """The value of the last header of the column `headers` that has the epoch's name; null if there is none."""
    return F.element_at(F.filter("headers", lambda header: header.key == HEADER), -1).value


def epoch_spans(records: DataFrame) -> list[EpochSpan]:
    """Where records (partition, offset, epoch) have which epochs; runs a Spark job."""
    offset = F.col("offset")
    spans = (
        records.where(F.col("epoch").isNotNull())
        .groupBy("partition", "epoch")
        .agg(F.min(offset).alias("first"), F.max(offset).alias("last"))
        .collect()
    )
    return [
        EpochSpan(row["partition"], epoch, row["first"], row["last"])
        for row in spans
        if (epoch := read_epoch(bytes(row["epoch"]))) is not None
    ]


def is_fenced(fenced: Sequence[FencedFrom]) -> Column:
    """Whether a record (partition, offset, epoch) is one of these; never null."""
    found = (
        (F.col("partition") == each.partition)
        & (F.col("epoch") == F.lit(each.epoch.header()))
        & (F.col("offset") > each.after)
        for each in fenced
    )
    return F.coalesce(reduce(or_, found, F.lit(False)), F.lit(False))
