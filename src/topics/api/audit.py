"""The audit log: a line of JSON for every call that was refused, or that removes or changes what there is.

| field | what |
|---|---|
| `ts` | when it was answered, in milliseconds |
| `event` | `refused`: who asked may not; `called`: it was let in, and went as `status` says; `lost`: some are missing |
| `status` | of the answer |
| `code` | of the error, where there is one that is known here |
| `method`, `path` | what was asked for, without the query; the name of a watch, which is a secret, is left out |
| `key` | the name of the key, or what stands for it in the log; empty for nobody |
| `peer` | address and port of the client, or its address alone where a trusted proxy tells it |

No secret is in any of it: neither keys nor tokens are in a path, and headers and bodies are not looked at.
"""

from collections.abc import Callable

import msgspec

from topics.api.auth import ANYONE, Key, Scope
from topics.api.proxies import TrustedProxies
from topics.http.messages import RequestHead
from topics.system.line_file import LineFile

_REFUSED = (401, 403)
_REMOVING = Scope.DELETE | Scope.ADMIN
_PATH_CHARS_MAX = 512
_WATCH = "/v0/watch/"
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ts: int
    event: str
    status: int = 0
    code: str = ""
    method: str = ""
    path: str = ""
    key: str = ""
    peer: str = ""
    count: int = 0


class Audit:
    def __init__(self, path: str, now_ms: Callable[[], int], proxies: TrustedProxies | None = None) -> None:
        """Raises `OSError` where the file cannot be opened."""
        self._now_ms = now_ms
        self._proxies = TrustedProxies() if proxies is None else proxies
        self._file = LineFile(path, lambda count: _line(Entry(ts=now_ms(), event="lost", count=count)))
        self.reopen = self._file.reopen
        self.close = self._file.close

    def refused(self, head: RequestHead, status: int, code: str, key: Key) -> None:
        """A call was refused; it is noted where that is a matter of who asked."""
        if status in _REFUSED:
            self._note("refused", head, status, code, key)

    def answered(self, head: RequestHead, scopes: Scope, key: Key, status: int) -> None:
        """A call was answered; it is noted where it was refused, or could have removed or changed something."""
        if status in _REFUSED:
            self._note("refused", head, status, "", key)
        elif scopes & _REMOVING:
            self._note("called", head, status, "", key)

    def _note(self, event: str, head: RequestHead, status: int, code: str, key: Key) -> None:
        path = f"{_WATCH}..." if head.path.startswith(_WATCH) else head.path[:_PATH_CHARS_MAX]
        name = "" if key is ANYONE else key.name or key.owner
        entry = Entry(
            ts=self._now_ms(), event=event, status=status, code=code, method=head.method[:16], path=path, key=name,
            peer=self._proxies.client(head.peer, head.headers),
        )  # fmt: skip
        self._file.add(_line(entry))


def _line(entry: Entry) -> bytes:
    return _encode(entry) + b"\n"
