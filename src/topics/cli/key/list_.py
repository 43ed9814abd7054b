"""`topics key list`."""

from datetime import UTC, datetime

import msgspec

from topics.cli.key.place import KeyFile, key_file
from topics.cli.shared.output import Output, listing
from topics.config.key_file import load_keys


def list_(*, output: Output = "table", file: KeyFile = None) -> int:
    """List the keys and what they may do. Nobody can see their secrets."""
    listing(
        output,
        ("KEY", "SCOPES", "PREFIXES", "CREATED"),
        (
            (
                (key.name, "+".join(key.scopes) or "all", "|".join(key.prefixes) or "all", _day(key.created_ms)),
                {name: value for name, value in msgspec.structs.asdict(key).items() if name != "sha256"},
            )
            for key in load_keys(key_file(file))
        ),
    )
    return 0


def _day(created_ms: int) -> str:
    return datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y-%m-%d")
