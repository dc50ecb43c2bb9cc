"""Who may read what the job writes."""

OWNER_ONLY = 0o077
"""The umask of the job and of all that it starts: tables, checkpoints and shuffle files hold users' names."""
