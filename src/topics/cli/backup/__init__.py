"""Commands about backups: `topics backup`."""
