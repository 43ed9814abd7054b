"""What the entries of a stream look like: schemas, lenses, routing keys, profiles, search registries.

Pure values and decisions: bytes and documents in, documents and refusals out. The server, the Spark jobs and the tests
run the same functions.
"""
