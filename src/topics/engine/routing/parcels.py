"""What a tick forwards together: parcels for destinations that take everything.

The routers of one source mostly stand at the same place, follow the same rules and go to topics of the same config.
Then the first of them decides for all: the others are given the same load after a few comparisons.
"""

from topics.engine.routing.forwarding import Parcel
from topics.engine.routing.registry import Registry, Router


class Parcels:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parcels: list[Parcel] = []
        self._examples: dict[int, Parcel] = {}
        """The last one that others may be like, by the shard of its destination. Its router stays where it is for as
        long as this is an example."""

    def add(self, parcel: Parcel, is_example: bool) -> None:
        """`is_example` says that the outcome holds for every router of the source that differs in nothing that
        `goes_along` looks at."""
        parcel.router.inflight = True
        self._parcels.append(parcel)
        if is_example:
            self._examples[parcel.dest.shard] = parcel

    def goes_along(self, router: Router) -> bool:
        """Forwards what another router of the same source just did, where all is the same but the destination.

        The checks are the pump's own, as far as their outcome may differ between the two.
        """
        dest = router.dest
        example = self._examples.get(dest.shard) if dest is not None else None
        if example is None or dest is None:
            return False
        known, like = example.router, example.dest
        if (
            router.source is not known.source
            or router.cursor != known.cursor
            or (router.rules is not known.rules and router.rules != known.rules)
            # The same rules come of the same config.
            or (dest.rules is not like.rules and dest.staged_config != like.staged_config)
            or not dest.rules.usual
            or router.closing
            or router.inflight
            or router.cyclic
            or router.dedupe_upto > router.cursor
            or not router.alone
        ):
            return False
        # Every router comes with rules of its own; from now on it takes one look to see that they are the same.
        router.rules = known.rules
        router.inflight = True
        self._parcels.append(Parcel(router, dest, example.load))
        return True

    def take(self) -> list[Parcel]:
        """Everything so far, to be sent."""
        parcels, self._parcels = self._parcels, []
        self._examples.clear()
        return parcels
