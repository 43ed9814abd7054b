"""Benchmarks: they print what was measured in one run, and never pass or fail."""
