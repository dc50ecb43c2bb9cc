"""The Python workers that Spark starts: their daemon, their release, and the engine that an extra gives them."""
