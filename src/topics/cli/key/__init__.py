"""Commands about the keys of a server: `topics key`."""
