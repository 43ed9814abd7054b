"""`topics serve`: run the server. The flags are generated from the table of settings."""

import inspect
import logging
import os
import shutil
import sys
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from topics import server
from topics.cli.failures import strangers
from topics.model.settings import SETTINGS, Setting, Settings
from topics.spark.pipeline.pipeline_settings import check_server, names_of
from topics.system.logs import configure_logs
from topics_protocol import __version__
from topics_protocol.config import DEFAULT_URL


def welcome(address: str, settings: Settings, program: str) -> str:
    """The start message for a terminal; `program` is argv[0], so that its commands can be copied."""
    url = f"http://{address}"
    if settings.api_keys is None and settings.key_file is None:
        keys = "off: any client that can reach this address has full access; set TOPICS_API_KEYS to require a key"
    else:
        keys = "on: give commands a key with TOPICS_API_KEY or --api-key"
    elsewhere = "" if url == DEFAULT_URL else f" --url {url}"
    command = called(program)
    lines = (
        ("", f"topics {__version__} listens on {url}"),
        ("data", os.path.abspath(settings.data_dir)),
        ("keys", keys),
        ("look", f"{url}/console"),
        ("try", f"""{command} append orders '{{"order":1}}'{elsewhere}"""),
        ("", f"{command} tail orders -f{elsewhere}"),
        ("stop", "Ctrl-C"),
    )
    head, *rest = (text if not name and at == 0 else f"  {name:<5} {text}" for at, (name, text) in enumerate(lines))
    return "\n".join(["", head, *rest, ""])


def called(program: str) -> str:
    """The command to run this program again from the same folder."""
    if os.path.basename(program) == "__main__.py":
        return "python -m topics"
    found = shutil.which("topics")
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return "topics"
    return os.path.relpath(program) if os.path.isabs(program) and os.path.exists(program) else program


_SWITCH = ("0", "1", "false", "true")
_SHOWN = {"0": "off", "false": "off", "1": "on", "true": "on"}

_log = logging.getLogger("topics.server")


def serve(reconfigure: str | None = None, **flags: object) -> int:
    """Run the server until SIGTERM or SIGINT. `flags` are settings by name, None for not given."""
    settings = Settings.from_env(
        os.environ, {name: str(int(value)) if isinstance(value, bool) else value for name, value in flags.items()}
    )
    configure_logs(settings.log_format, level=settings.log_level)
    if flags.pop("api_keys", None) is not None:
        _log.warning("keys on the command line are visible to all users: set TOPICS_API_KEYS instead")
    for name, meant in strangers(os.environ):
        _log.warning("unknown variable", extra={"variable": name, "did_you_mean": meant})
    settings = check_server(settings, Settings.given(os.environ, flags), names_of(reconfigure))
    for_people = settings.log_format == "human" or (settings.log_format == "auto" and sys.stderr.isatty())
    server.run(settings, (lambda address: _greet(address, settings)) if for_people else None)
    return 0


def _greet(address: str, settings: Settings) -> None:
    print(welcome(address, settings, sys.argv[0]), file=sys.stderr, flush=True)


def _flag(setting: Setting) -> inspect.Parameter:
    is_switch = setting.choices == _SWITCH
    default = (
        _SHOWN[str(setting.default)] if is_switch else "not set" if setting.default is None else str(setting.default)
    )
    kind: Any = int if setting.kind == "integer" else str
    if setting.choices:
        kind = bool if is_switch else Literal[setting.choices]
    # The other commands that work on the backup storage call it --at.
    names = (setting.flag, "--at") if setting.name == "backup_dir" else (setting.flag,)
    parameter = Parameter(name=names, help=f"{setting.help} ({setting.env})", show_default=lambda _: default)
    # None means "not given": then the environment variable is used.
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, parameter]
    )


_RECONFIGURE = inspect.Parameter(
    "reconfigure", inspect.Parameter.KEYWORD_ONLY, default=None,
    annotation=Annotated[
        str | None,
        Parameter(help="Recorded archive settings to replace by those given, such as archive_typed; commas between."),
    ],
)  # fmt: skip

# The command line is parsed by the signature, which gets a parameter for each setting.
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(_flag(setting) for setting in SETTINGS), _RECONFIGURE], return_annotation=int
)
