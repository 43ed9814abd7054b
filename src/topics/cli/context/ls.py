"""`topics context ls`."""

import os

from topics.cli.shared.contexts import config_path, load_contexts
from topics.cli.shared.output import Output, listing


def ls(*, output: Output = "table") -> int:
    """List the contexts; the star is at the current one. Keys are not shown."""
    found = load_contexts(config_path(os.environ))
    listing(
        output,
        ("", "CONTEXT", "URL", "KEY"),
        (
            (
                ("*" if name == found.current else "", name, context.url, "yes" if context.api_key else "no"),
                {"context": name, "url": context.url, "key": bool(context.api_key), "current": name == found.current},
            )
            for name, context in sorted(found.contexts.items())
        ),
        name=1,
    )
    return 0
