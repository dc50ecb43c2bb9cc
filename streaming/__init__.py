"""The Spark job: session, source, operator, queries and the command line."""
