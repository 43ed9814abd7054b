"""`topics stream tail`."""

import time
from typing import Annotated

from cyclopts import Parameter

from topics.cli.shared.connection import HERE, Server
from topics.cli.shared.output import note
from topics.cli.stream.http import Answer, LineFailed, Streams, path_of, streams_of, type_of
from topics.cli.stream.read import Key
from topics.cli.stream.reading import is_closed, printed
from topics.client import ApiError, RetryLater

_LOOK_AGAIN_S = 0.5


def tail(
    name: str,
    /,
    *,
    offset: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Where to begin: an offset, -1 for the start, or now.")
    ] = "now",
    key: Key = None,
    server: Server = HERE,
) -> int:
    """Print what comes into a stream, until it is closed. A server that is restarted is waited for.

    Parameters
    ----------
    name
        Its name.
    """
    with streams_of(server) as streams:
        # A stream that is not there is told now, and not waited for.
        type_of(streams, name)
        while True:
            query = {"offset": offset, "live": "long-poll", **({"key": key} if key is not None else {})}
            answer = _patiently(streams, name, query)
            offset = printed(name, answer)
            if is_closed(answer):
                return 0


def _patiently(streams: Streams, name: str, query: dict[str, str]) -> Answer:
    is_away = False
    while True:
        try:
            answer = streams.ask("GET", path_of(name), query=query)
        except (LineFailed, RetryLater) as error:
            if not is_away:
                note(f"the server is away ({error}); waiting for it")
            is_away = True
            time.sleep(_LOOK_AGAIN_S)
            continue
        except ApiError as error:
            if error.code != "offset_gone":
                raise
            note(f"{name}: the next entries are gone; it goes on with the first there is")
            query["offset"] = "-1"
            continue
        if is_away:
            note("the server is back")
        return answer
