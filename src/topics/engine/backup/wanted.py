"""Which topics of a backup come back, and what they are called then."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.core.backup_errors import BackupTargetError
from topics.core.errors import InvalidRequestError, quoted
from topics.core.names import SERVER_TOPICS, check_stream_name, check_topic_name, is_reserved_name


class Wanted(NamedTuple):
    """Which topics; all where neither names nor prefixes are given."""

    names: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    rename: tuple[str, str] | None = None
    """The beginning of names that is replaced, and by what."""

    def takes(self, name: str) -> bool:
        if not self.names and not self.prefixes:
            return True
        return name in self.names or any(name.startswith(prefix) for prefix in self.prefixes)

    def keeps(self, name: str) -> bool:
        """Whether a topic comes back, asked for or not: the server's own always do."""
        return name in SERVER_TOPICS or self.takes(name)

    def named(self, name: str) -> str:
        if self.rename is None or not name.startswith(self.rename[0]):
            return name
        return self.rename[1] + name.removeprefix(self.rename[0])

    def check(self, found: Iterable[tuple[str, bool]]) -> None:
        """Whether these topics can have the names they would get. Each comes with whether it is a stream, which may be
        called more. Raises BackupTargetError."""
        taken: set[str] = set()
        for name, is_stream in found if self.rename is not None else ():
            new = name if name in SERVER_TOPICS else self.named(name)
            if new in taken:
                raise BackupTargetError(f"two topics would have the name {quoted(new)}")
            taken.add(new)
            if new != name:
                _check_name(new, is_stream)

    def dead_letter(self, queue: str, name: str) -> str:
        """What the dead letter topic of a queue is called, which has its new name already."""
        new = self.named(name)
        if new == queue:
            raise BackupTargetError(f"{quoted(queue)} would be its own dead letter topic")
        if new != name:
            _check_name(new, is_stream=False)
        return new


ALL = Wanted()


def _check_name(name: str, is_stream: bool) -> None:
    try:
        if not is_stream:
            check_topic_name(name)
            return
        check_stream_name(name)
    except InvalidRequestError as error:
        raise BackupTargetError(error.message) from error
    if is_reserved_name(name):
        raise BackupTargetError(f"{quoted(name)} is a reserved name: no stream can have it")
