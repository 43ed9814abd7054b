"""`topics serve`: a flag for every setting, made from the table of settings so that none can be forgotten."""

import inspect
import logging
import os
import sys
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from topics import server
from topics.cli.shared.environment import strangers
from topics.cli.welcome import welcome
from topics.config.settings import SETTINGS, Setting, Settings
from topics.system.logs import configure_logs

_SWITCH = ("0", "1", "false", "true")

_log = logging.getLogger("topics.server")


def serve(**flags: object) -> int:
    """Runs the server until SIGTERM or SIGINT tells it to stop; `flags` are settings by name, None for not given."""
    settings = Settings.from_env(
        os.environ, {name: str(int(value)) if isinstance(value, bool) else value for name, value in flags.items()}
    )
    configure_logs(settings.log_format, level=settings.log_level)
    if flags.pop("api_keys", None) is not None:
        _log.warning("keys on the command line can be seen by everyone on this machine: set TOPICS_API_KEYS instead")
    for name, meant in strangers(os.environ):
        _log.warning("a variable is not known", extra={"variable": name, "did_you_mean": meant})
    for_people = settings.log_format == "human" or (settings.log_format == "auto" and sys.stderr.isatty())
    server.run(settings, (lambda address: _greet(address, settings)) if for_people else None)
    return 0


def _greet(address: str, settings: Settings) -> None:
    print(welcome(address, settings, sys.argv[0]), file=sys.stderr, flush=True)


def _flag(setting: Setting) -> inspect.Parameter:
    is_switch = setting.choices == _SWITCH
    default = "off" if is_switch else "not set" if setting.default is None else str(setting.default)
    kind: Any = int if setting.kind == "integer" else str
    if setting.choices:
        kind = bool if is_switch else Literal[setting.choices]
    parameter = Parameter(name=setting.flag, help=f"{setting.help} ({setting.env})", show_default=lambda _: default)
    # None stands for "not given": only then may the environment speak.
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, parameter]
    )


# The command line is read by the signature, and this is the signature of a function with a parameter for each setting.
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_flag(setting) for setting in SETTINGS], return_annotation=int
)
