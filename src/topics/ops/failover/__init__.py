"""Failover: the lease of the primary, and the takeover by a standby."""
