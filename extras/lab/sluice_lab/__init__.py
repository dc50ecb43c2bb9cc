"""The laboratory: benchmarks, scenarios on real clusters, tests that others wrote, and the test bed of all of them."""
