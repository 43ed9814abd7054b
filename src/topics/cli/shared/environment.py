"""Variables that look like ours and are not: a setting that is spelled wrong would silently not count."""

from collections.abc import Iterable, Iterator

CLIENT_NAMES = ("TOPICS_URL", "TOPICS_API_KEY", "TOPICS_CONTEXT", "TOPICS_CONFIG")
"""What the command line itself reads; everything else is a setting of the server."""

_PREFIX = "TOPICS_"


def strangers(names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Every `TOPICS_…` that means nothing, and the name that was probably meant."""
    unsure = sorted(name for name in names if name.startswith(_PREFIX) and name not in CLIENT_NAMES)
    if not unsure:
        return
    from topics.config.settings import SETTINGS  # noqa: PLC0415 - most command lines have no such variable

    known = [*CLIENT_NAMES, *(setting.env for setting in SETTINGS)]
    for name in unsure:
        if name not in known:
            # What all of them begin with makes none of them alike.
            meant = did_you_mean(name.removeprefix(_PREFIX), [one.removeprefix(_PREFIX) for one in known])
            yield name, None if meant is None else _PREFIX + meant


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like another one; None where none is like it."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def advice(name: str, meant: str | None) -> str:
    """What to tell about such a name."""
    return f"{name} is not known" + (f"; did you mean {meant}?" if meant else "")
