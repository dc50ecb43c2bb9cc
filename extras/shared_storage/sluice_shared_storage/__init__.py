"""Checkpoints in storage that several machines share, and one driver at a time on each."""
