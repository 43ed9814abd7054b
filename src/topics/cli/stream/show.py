"""`topics stream show`."""

from topics.cli.shared.amounts import shown_bytes
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, fields, json_line, line
from topics.cli.stream.contents import name_of
from topics.client import StreamDetails


def show(name: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show where a stream stands, what it promises, and where its bytes are. Looking does not keep it alive.

    Parameters
    ----------
    name
        Its name.
    """
    with connected(server) as client:
        details = client.get_stream_details(name_of(name))
    assert details is not None
    if output == "json":
        json_line(details)
    elif output == "raw":
        line(details.stream.next_offset)
    else:
        fields(_pairs(details))
    return 0


def _pairs(details: StreamDetails) -> list[tuple[str, object]]:
    stream, schema = details.stream, details.schema
    size = int(stream.total_size_bytes)
    families = {one["family"]: one["lag_segments"] for one in details.index_status.get("search_families", ())}
    return [
        ("stream", stream.name),
        ("content type", stream.content_type),
        ("profile", stream.profile),
        ("entries", stream.next_offset),
        ("bytes", f"{size} ({shown_bytes(size)})" if size >= 1024 else size),
        ("closed", "yes" if stream.closed else "no"),
        ("created", stream.created_at),
        ("last append", stream.last_append_at),
        ("expires", stream.expires_at or "never"),
        ("schema version", schema.current_version or "none"),
        ("routing key", schema.routing_key.json_pointer if schema.routing_key else "none"),
        ("searchable fields", len((schema.search or {}).get("fields", ()))),
        ("segments", stream.segment_count),
        ("indexes behind", ", ".join(f"{name} by {lag}" for name, lag in families.items() if lag) or "none"),
    ]
