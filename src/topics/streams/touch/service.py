"""The touches of all streams that somebody asked for."""

from collections.abc import Callable, Iterator

from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.schema.profiles.state_protocol import StateProtocol, Touch
from topics.streams.contracts import contract_of
from topics.streams.early import Later
from topics.streams.touch.stream import Read, StreamTouch, Surroundings, Watch

_SWEEP_S = 60.0


class Touches:
    def __init__(self, engine: Engine, read: Read, watch: Watch, later: Later) -> None:
        core = engine.core
        self._core = core
        self._later = later
        self._around = Surroundings(read, watch, later, touch_settings, core.wall, core.steady)
        self._streams: dict[Topic, StreamTouch] = {}
        self._sweeping: Callable[[], None] | None = None
        core.gone.append(self._gone)

    def __iter__(self) -> Iterator[StreamTouch]:
        """The touches that somebody asked for."""
        return iter(self._streams.values())

    def of(self, topic: Topic) -> StreamTouch | None:
        """The touches of a stream, which begin with the first who asks; None where they are off."""
        settings = touch_settings(topic)
        known = self._streams.get(topic)
        if known is not None and (known.over or known.settings != settings):
            known.end()
            del self._streams[topic]
            known = None
        if settings is None:
            return None
        if known is None:
            known = StreamTouch(topic, settings, self._core.dice.token(8).hex(), self._around)
            self._streams[topic] = known
            if self._sweeping is None:
                self._sweeping = self._later(_SWEEP_S, self._sweep)
        return known

    def _gone(self, topic: Topic) -> None:
        touch = self._streams.pop(topic, None)
        if touch is not None:
            touch.end()

    def _sweep(self) -> None:
        """Lets go of those that nobody asks for any more: should somebody come again, the epoch is another."""
        now = self._core.steady()
        for topic, touch in list(self._streams.items()):
            unused_ms = now - touch.used_ms
            if not touch.journal.waiters and unused_ms >= touch.settings.templates.default_inactivity_ttl_ms:
                touch.end()
                del self._streams[topic]
        self._sweeping = self._later(_SWEEP_S, self._sweep) if self._streams else None


def touch_settings(topic: Topic) -> Touch | None:
    """What a stream says about its touches; None where they are off."""
    profile = contract_of(topic).profile
    return profile.touch_settings if isinstance(profile, StateProtocol) else None
