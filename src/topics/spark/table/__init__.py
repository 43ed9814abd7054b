"""The archive as an Apache Iceberg table, for every engine that reads one.

`files` is what the table is told, `table` compares that with what it shows and commits the difference. Below it are
`positions` (deleted rows), `entries`, `manifests` and `snapshots` (Iceberg's own files), `history` (what is kept),
`pointers` and `catalogs` (which version counts), `schema` (its columns and partitions), `io`. All of it needs
pyiceberg, so no task imports it.
"""
