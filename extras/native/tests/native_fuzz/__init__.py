"""Random events and pages for native code and Python, which have to do the same."""
