"""Backups: a copy of what a checkpoint has, taken while the server runs, and the way back from it."""
