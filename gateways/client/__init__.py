"""The gateway client: charges requests inline, publishes their events and reads the sums of what is decided."""
