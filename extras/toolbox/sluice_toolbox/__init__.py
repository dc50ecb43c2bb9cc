"""Operators' tools beside the job: balances to another checkpoint, and what a cluster's own quotas let through."""
