"""The Python workers that Spark starts: the daemons that fork them, and the path of pages in batches."""
