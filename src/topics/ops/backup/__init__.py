"""Backups, log shipping and restore."""
