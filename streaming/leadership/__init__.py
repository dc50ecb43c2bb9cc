"""One driver at a time on a checkpoint in shared storage, where no file can be locked."""
