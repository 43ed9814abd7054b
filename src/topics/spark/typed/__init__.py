"""A stream of the archive as a table with a column for each member that its schema declares, promoted.

`twins` makes the files in tasks: one for each file of the archive that holds entries of the stream. `choosing` decides
which of them are shown, `shape` says what such a table looks like to Iceberg, `tables` keeps one of them.
"""
