"""Benchmarks. A package, so that they are checked like all other code; each is run as `python -m benchmarks.NAME`."""
