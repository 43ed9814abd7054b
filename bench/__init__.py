"""Benchmarks: they print the measurements of one run, and never pass or fail."""
