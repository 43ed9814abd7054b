"""Spark integration: the pipeline over sealed segments, the archive and its Iceberg tables, and the connector.

It reads the files of the data folder and uses the public API: nothing here imports the engine or the server. Modules
that import `pyspark` state it in their first lines; the others also run in the server and in Spark tasks.
"""
