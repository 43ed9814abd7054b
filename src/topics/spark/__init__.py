"""Spark behind the log: sealed segments as DataFrames, the jobs of the pipeline, and the connector for Spark users.

Spark is a guest on the files and a client of the API: nothing here imports the engine or the server. Modules that
import `pyspark` say so in their first lines; the others run without it, in the server as well as in Spark's tasks.
"""
