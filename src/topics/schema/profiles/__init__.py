"""Profiles: what kind of stream a stream is, and what its kind makes of each entry.

generic          nothing
evlog            one wide event a request: a canonical envelope, secrets redacted, a schema and a search description
metrics          intervals of metrics: a canonical envelope, a schema, a search description with a rollup
otel-traces      spans of OpenTelemetry: a canonical envelope, secrets redacted, a schema and a search description
state-protocol   changes of rows: checked, and kept as they are
"""
