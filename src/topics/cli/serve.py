"""`topics serve`: a flag for every setting, made from the table of settings so that none can be forgotten."""

import inspect
import os
from typing import Annotated

from cyclopts import Parameter

from topics import server
from topics.config.settings import SETTINGS, Setting, Settings


def serve(**flags: object) -> int:
    """Runs the server until SIGTERM or SIGINT tells it to stop; `flags` are settings by name, None for not given."""
    server.run(Settings.from_env(os.environ, flags))
    return 0


def _flag(setting: Setting) -> inspect.Parameter:
    default = "not set" if setting.default is None else setting.default
    parameter = Parameter(name=setting.flag, help=f"{setting.help} ({setting.env}; default {default})")
    value_type = int | None if setting.kind == "integer" else str | None
    # None stands for "not given": only then may the environment speak.
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[value_type, parameter]
    )


# The command line is read by the signature, and this is the signature of a function with a parameter for each setting.
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_flag(setting) for setting in SETTINGS], return_annotation=int
)
