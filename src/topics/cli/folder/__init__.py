"""Commands that look at a data folder, without a server."""
