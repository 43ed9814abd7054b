"""`topics show`."""

import msgspec

from topics.cli.shared.amounts import shown_bytes, shown_time
from topics.cli.shared.connection import HERE, Server, connected
from topics.cli.shared.output import Output, fields, json_line, line


def show(topic: str, /, *, output: Output = "table", server: Server = HERE) -> int:
    """Show where a topic stands, and its config.

    Parameters
    ----------
    topic
        Its name.
    """
    with connected(server) as client:
        # To look at a topic is not to use it.
        state = client.get_topic(topic, touch=False)
    if output == "json":
        json_line(state)
        return 0
    if output == "raw":
        line(str(state.head_seq))
        return 0
    pairs: list[tuple[str, object]] = [
        ("topic", state.topic),
        ("type", state.type),
        ("records", state.count),
        ("bytes", f"{state.bytes} ({shown_bytes(state.bytes)})" if state.bytes >= 1024 else state.bytes),
        ("first seq", state.earliest_seq),
        ("last seq", state.head_seq),
        ("last write", shown_time(state.last_write_ts) or "never"),
        ("last read", shown_time(state.last_read_ts) or "never"),
    ]
    if state.queue is not None:
        pairs += [(name.replace("_", " "), count) for name, count in msgspec.to_builtins(state.queue).items()]
    for name, value in msgspec.to_builtins(state.config).items():
        # The class says it already.
        if name not in ("type", "durable"):
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
            pairs.append((f"--{name.replace('_', '-')}", shown))
    fields(pairs)
    return 0
