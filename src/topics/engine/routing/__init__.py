"""Routers: forwarding records from one topic into another, and keeping the copies through any crash."""
