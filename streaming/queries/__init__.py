"""Streaming queries of Spark under supervision: begun, followed, restarted, and stopped between two micro-batches."""
