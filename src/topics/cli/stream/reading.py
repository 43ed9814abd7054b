"""Reading a stream: each answer's content to standard output, and what was lost beside it."""

import sys

import msgspec

from topics.cli.shared.output import flush, note, raw_line
from topics.cli.stream.http import Answer, is_json

_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


def printed(name: str, answer: Answer) -> str:
    """Prints one answer; the offset to go on from. JSON is one value a line, bytes are as they are."""
    lost = answer.headers.get("stream-gap")
    if lost is not None:
        note(f"{name}: the entries {lost.replace('; reason=', ' are lost (')})")
    if answer.body:
        if is_json(answer.headers.get("content-type", "")):
            for value in _decode(answer.body):
                raw_line(bytes(value))
        else:
            sys.stdout.buffer.write(answer.body)
        flush()
    return answer.headers["stream-next-offset"]


def is_closed(answer: Answer) -> bool:
    return answer.headers.get("stream-closed") == "true"


def is_at_end(answer: Answer) -> bool:
    return answer.headers.get("stream-up-to-date") == "true"
