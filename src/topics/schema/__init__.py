"""Schemas of streams: validation, versions and lenses (schema migrations), routing keys, profiles, search fields.

Pure functions on bytes and documents. The server, the Spark jobs and the tests run the same functions.
"""
