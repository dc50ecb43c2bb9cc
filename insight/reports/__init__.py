"""Answers from the Delta tables: throttled requests and their reasons, usage, and limits compared with it."""
