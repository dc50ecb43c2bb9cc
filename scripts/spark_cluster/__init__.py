"""`./scripts/cluster`: the job on a real Spark cluster, with kills."""
