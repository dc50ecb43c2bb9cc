"""Answers from the Delta tables: who was throttled, why, what was used, and which limit would fit."""
