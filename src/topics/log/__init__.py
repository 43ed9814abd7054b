"""The log on disk: WAL, frames, blocks, segments, snapshots, group commit and the storage tiers. The only package that
touches files.
"""
