"""The cold tier in an object store: the store interface, a local cache, and a file system over both tiers."""
