"""Commands for developers and first-time users: broker, load, benchmarks."""
