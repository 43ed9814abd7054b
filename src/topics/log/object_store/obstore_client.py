"""Object store client on top of obstore.

Credentials, region and endpoint come from the environment by the conventions of each cloud (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL` and so on) and are never read here. The errors of the library quote the request, so only their first
sentence is passed on, cut at a `?`, after which signatures may follow.

A small call may take `CALL_S` seconds, an upload one second more for each `BYTES_A_SECOND`, because the library's
timeout includes the body. A download may continue while no pause reaches `CALL_S`. The library retries by itself,
`RETRIES` times. Uploads are single requests: an aborted multipart upload would leave invisible parts that are billed.
"""

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from topics.log.fs import BytesLike
from topics.log.object_store.store import Listing, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

CALL_S = 5.0
DOWNLOAD_S = 600.0
RETRIES = 3
RETRIES_S = 30.0
BACKOFF_MS = (50, 2_000)
BYTES_A_SECOND = 4 * 1024 * 1024
_STEP_BYTES = 64 * 1024 * 1024
_SMALL_BYTES = 1024 * 1024
_DOWNLOAD = -1
_WHY_CHARS_MAX = 300
_QUERY = re.compile(r"\?\S*")

T = TypeVar("T")


class RemoteStore:
    """The objects below a URL. Thread-safe; each call blocks until it is answered."""

    def __init__(self, url: str) -> None:
        import obstore  # noqa: PLC0415 - a server without an object store does not load it

        self._api: Any = obstore
        self._url = url
        self._clients: dict[int, Client] = {}
        """By timeout; see `_client`."""

    def get(self, name: str) -> memoryview:
        return self._ask(lambda: memoryview(self._api.get(self._client(None), name).bytes()))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        client = self._client(length)
        return self._ask(lambda: bytes(self._api.get_range(client, name, start=offset, length=length)))

    def get_tail(self, name: str, length: int) -> bytes:
        options = {"range": {"suffix": length}}
        try:
            return self._ask(lambda: bytes(self._api.get(self._client(length), name, options=options).bytes()))
        except StoreUnavailable as error:
            # An empty object has no last bytes: stores refuse such a range, or return the whole object.
            if ("416" in error.why or "non-partial" in error.why) and not self.size(name):
                return b""
            raise

    def size(self, name: str) -> int:
        try:
            return int(self._ask(lambda: self._api.head(self._client(0), name))["size"])
        except FileNotFoundError:
            # The answer to a HEAD request has no body, and only a body distinguishes a missing object from a missing
            # bucket.
            self.get_range(name, 0, 1)
            raise

    def put(self, name: str, pieces: Sequence[BytesLike]) -> None:
        # A single piece may be a mapped file of several gigabytes, which is sent without a copy.
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._ask(lambda: self._api.put(self._client(len(data)), name, data, use_multipart=False), missing=False)

    def put_new(self, name: str, data: bytes) -> None:
        client = self._client(len(data))
        self._ask(
            lambda: self._api.put(client, name, data, use_multipart=False, mode="create"), missing=False, taken=True
        )

    def remove(self, name: str) -> None:
        try:
            self._ask(lambda: self._api.delete(self._client(0), name))
        except FileNotFoundError:
            return  # Some stores report this, others do not.

    def copy(self, source: str, target: str) -> None:
        self._ask(lambda: self._api.copy(self._client(_STEP_BYTES), source, target))

    def list_folder(self, folder: str) -> Listing:
        found = self._ask(lambda: self._api.list_with_delimiter(self._client(None), folder), missing=False)
        last = len(folder) + 1 if folder else 0
        folders = sorted(prefix[last:] for prefix in found["common_prefixes"])
        return Listing(folders, sorted(entry["path"][last:] for entry in found["objects"]))

    def _client(self, size: int | None) -> "Client":
        """Returns a client with a timeout for this many bytes; None for a download of unknown size."""
        steps = _DOWNLOAD if size is None else 0 if size <= _SMALL_BYTES else -(-size // _STEP_BYTES)
        client = self._clients.get(steps)
        if client is None:
            call_s = None if steps == _DOWNLOAD else CALL_S + steps * _STEP_BYTES / BYTES_A_SECOND
            client = self._clients[steps] = _connect(self._url, call_s)
        return client

    def _ask(self, call: Callable[[], T], missing: bool = True, taken: bool = False) -> T:
        """Calls the store and maps failures to the two error types.

        Without `missing`, only the bucket can be missing. With `taken`, an object that exists already is a separate
        error.
        """
        try:
            return call()
        except self._api.exceptions.AlreadyExistsError as error:
            if taken:
                raise FileExistsError(_first_sentence(error)) from None
            raise StoreUnavailable(_first_sentence(error)) from None
        except FileNotFoundError as error:
            if missing and "NoSuchBucket" not in str(error) and "ContainerNotFound" not in str(error):
                raise FileNotFoundError(_first_sentence(error)) from None
            raise StoreUnavailable(_first_sentence(error)) from None
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(_first_sentence(error)) from None


def _connect(url: str, call_s: float | None) -> "Client":
    """Returns a client with a total timeout; without one, a call ends when no bytes arrive for `CALL_S`."""
    from obstore.store import from_url  # noqa: PLC0415

    times = {"timeout": timedelta(seconds=call_s if call_s is not None else DOWNLOAD_S)}
    if call_s is None:
        times["read_timeout"] = timedelta(seconds=CALL_S)
    backoff = {
        "init_backoff": timedelta(milliseconds=BACKOFF_MS[0]),
        "max_backoff": timedelta(milliseconds=BACKOFF_MS[1]),
        "base": 2,
    }
    connect: Any = from_url  # Its types have one overload for each cloud; the URL selects one.
    client: Client = connect(
        url,
        # An endpoint without TLS is used only if the operator configured it.
        client_options={**times, "connect_timeout": timedelta(seconds=2), "allow_http": True},
        retry_config={"max_retries": RETRIES, "backoff": backoff, "retry_timeout": timedelta(seconds=RETRIES_S)},
    )
    return client


def _first_sentence(error: Exception) -> str:
    text = str(error).split("Debug source", 1)[0]
    return _QUERY.sub("", " ".join(text.split()))[:_WHY_CHARS_MAX]
