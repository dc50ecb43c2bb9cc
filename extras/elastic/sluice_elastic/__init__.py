"""Deciders that override limits: by the load of brokers, low disks, and the bytes that tenants store."""
