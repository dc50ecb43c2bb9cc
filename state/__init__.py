"""Pure quota arithmetic: no Spark, no Kafka, time is always an argument."""
