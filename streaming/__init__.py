"""The Spark job: session, source, operator and queries."""
