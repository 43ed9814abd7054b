"""Searching streams: entries are brought to the searching process when somebody asks, and a query follows them."""
