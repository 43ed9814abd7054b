"""`topics stream read`."""

from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, PATIENT_S, Server, connected
from topics.cli.stream.contents import name_of, show

Offset = Annotated[str, Parameter(allow_leading_hyphen=True, help="Where to begin: an offset, or -1 for the start.")]
Key = Annotated[str | None, Parameter(help="Only entries of this key.")]


def read(name: str, /, *, offset: Offset = "-1", key: Key = None, server: Server = HERE) -> int:
    """Print what a stream holds, up to its end: JSON one value a line, bytes as they are.

    Parameters
    ----------
    name
        Its name.
    """
    stream = name_of(name)
    with connected(server, PATIENT_S) as client:
        while True:
            page = client.read_stream(stream, offset, key=key)
            show(page)
            if page.up_to_date or page.closed:
                return 0
            offset = page.next_offset
