"""Verification of a data folder: finds damage and changes nothing."""
