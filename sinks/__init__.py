"""The Kafka topics and Delta tables that the job writes."""
