"""A small HTTP service in front of Kafka's admin and produce calls, behind Sluice's own middleware. Extra: http."""
