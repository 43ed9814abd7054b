"""Sealed files over HTTP: parts of segments and index files, for Spark tasks on machines without the data folder."""

import re
from typing import cast

from topics.api.app import Call, Operation, Parameter, Route
from topics.api.auth import Scope
from topics.api.error_responses import ForbiddenError, NotFoundError
from topics.model.errors import InvalidRequestError, TopicsError

PART_BYTES_MAX = 4 * 1024 * 1024
"""The maximum number of bytes of an answer."""
_PART_BYTES_MIN = 64 * 1024
_SERVED = re.compile(
    r"topics/[0-9a-f]{16}/seg-[0-9]{20}\.(data|idx)|families/[0-9a-f]{16}/[0-9A-Za-z.-]+|meta/catalog(-[0-9]{16})?"
    r"|pipeline/nonce",
    re.ASCII,
)
"""Files that the pipeline reads. None of them contains a key."""


def read_sealed_file(call: Call) -> None:
    """Returns a part of a file; the header `topics-file-bytes` has the length of the whole file."""
    if call.key.prefixes:
        raise ForbiddenError("files hold the records of all topics, and this key is for some of them", name=None)
    path = call.query.get("path", "")
    if not _SERVED.fullmatch(path) or ".." in path:
        raise InvalidRequestError("query path: must be a segment, an index file, meta/catalog or pipeline/nonce")
    offset = _offset(call)
    length = max(call.room(call.number("length", PART_BYTES_MAX, PART_BYTES_MAX)), _PART_BYTES_MIN)

    def read(outcome: object) -> None:
        if isinstance(outcome, FileNotFoundError):
            call.refuse(NotFoundError(f"there is no file {path}"))
        elif isinstance(outcome, Exception):
            call.refuse(outcome if isinstance(outcome, TopicsError) else TopicsError(f"a read failed: {outcome}"))
        else:
            data, size = cast("tuple[bytes, int]", outcome)
            call.finish(200, data, (("topics-file-bytes", str(size)),), "application/octet-stream")

    call.engine.read_folder_file(path, offset, length, read)


def _offset(call: Call) -> int:
    text = call.query.get("offset", "0")
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidRequestError("query offset: must be a whole number", field="offset")
    return int(text)


SEALED_FILE_ROUTES = (
    Route(
        "GET", "/v0/pipeline/files", read_sealed_file, Scope.ADMIN,
        operation=Operation(
            "readSealedFile", "Read a part of a segment or an index file, for Spark tasks without the data folder.",
            {200: "application/octet-stream"}, ("not_found", "forbidden"),
            query=(
                Parameter("path", {"type": "string"}, "The file, relative to the data folder."),
                Parameter("offset", {"type": "integer", "minimum": 0}, "The first byte. Default: 0."),
                Parameter("length", {"type": "integer", "minimum": 1}, "Bytes to read, at most 4 MiB."),
            ),
        ),
    ),
)  # fmt: skip
