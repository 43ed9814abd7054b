"""One setting, and how a value given for it is read and checked."""

import re
from typing import Literal

import msgspec

Kind = Literal["integer", "text", "choice"]
Value = int | str | None

# 18 digits always fit a signed 64-bit integer, which is what the formats on disk can hold.
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
# `host:port`, with an IPv6 host in brackets because it has colons of its own.
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[^:]*))?", re.ASCII)


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The text names the setting, the value and what is accepted."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What flags, checks and documentation need to know of one setting."""

    name: str
    kind: Kind
    default: Value
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    help: str

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"TOPICS_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def accepted(self) -> str:
        """What may be given, in words that end a sentence."""
        if self.kind == "text":
            return "a text that is not empty"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"a whole number from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"a whole number of at least {self.minimum}"
        return "a whole number"


def read_value(setting: Setting, given: object, source: str) -> int | str:
    """The checked value of `given`, which may be text as well as a number; `source` names its origin in an error."""
    if setting.kind == "integer":
        return _read_integer(setting, given, source)
    if not isinstance(given, str) or not given or (setting.choices and given not in setting.choices):
        raise _refusal(setting, given, source)
    return given


def as_integer(given: object) -> int | None:
    """The whole number that `given` is or spells; None for anything else."""
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return None


def split_address(given: str, source: str) -> tuple[str, str | None]:
    """The host and, where the text has one, the port of `host`, `host:port`, `[ipv6]` or `[ipv6]:port`."""
    match = _ADDRESS.fullmatch(given)
    if match is None or match["port"] == "":
        raise SettingsError(f"{source} is {given!r}; accepted is a host, host:port or [IPv6 address]:port")
    return match["v6"] or match["name"], match["port"]


def _read_integer(setting: Setting, given: object, source: str) -> int:
    number = as_integer(given)
    if number is None:
        raise _refusal(setting, given, source)
    too_small = setting.minimum is not None and number < setting.minimum
    too_large = setting.maximum is not None and number > setting.maximum
    if too_small or too_large:
        raise _refusal(setting, given, source)
    return number


def _refusal(setting: Setting, given: object, source: str) -> SettingsError:
    return SettingsError(f"{source} is {given!r}; accepted is {setting.accepted}")
