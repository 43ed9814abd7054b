"""The cold tier in an object store: the store's calls, copies kept nearby, and a file system made of both."""
