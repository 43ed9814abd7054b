"""Commands that ask what a stream holds: hits, and sums over time."""
