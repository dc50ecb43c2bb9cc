"""Pure quota arithmetic without Spark or Kafka. Time is always an argument."""
