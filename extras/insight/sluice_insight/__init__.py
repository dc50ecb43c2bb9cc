"""Live figures of clients, the console, reports and what-if: they look on at topics and tables, without Spark."""
