"""The profile `generic`: entries are what they are."""

from topics.schema.profiles.base import Profile


class Generic(Profile, frozen=True, kw_only=True, tag="generic"):
    @property
    def needs_json(self) -> bool:
        return False
