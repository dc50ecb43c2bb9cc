"""Settings, quotas and jar versions, and their loader."""
