"""Recorded decisions under other quotas, and limits proposed from recorded usage."""
