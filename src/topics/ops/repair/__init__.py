"""Repair of a damaged data folder."""
