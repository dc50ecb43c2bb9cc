"""What the job writes to: Kafka topics and Delta tables."""
