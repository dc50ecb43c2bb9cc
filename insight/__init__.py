"""Answers for people: live figures, the web console, reports, SQL and what-if. Imports no Spark."""
