"""The search service of the server: runs a query over memory index, index files and unindexed entries."""
