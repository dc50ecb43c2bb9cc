"""Kafka for every part of Sluice: clients, topic readers, topics and cluster quotas."""
