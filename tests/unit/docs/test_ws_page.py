"""The part of the API's page about the WebSocket: every message and field is there, and the conversation is real."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.api.sockets import open_socket
from tests.http.live import LiveServer
from tests.unit.docs.pages import blocks, rows, section
from tests.unit.docs.test_api_page import check_same
from tools.site_reference import built
from topics.api.v0 import websocket, websocket_messages
from topics.api.v0.websocket_messages import Command, Publish
from topics.http.messages import HttpLimits
from topics_protocol.websocket_frames import (
    COMMANDS,
    Position,
    ServerFrame,
    Subscribe,
    SubscribeFrom,
    Unsubscribe,
)

PAGE = built("docs/api/websocket.md")


def named(heading: str, first: str = "") -> set[str]:
    """Every word in backticks of the first cells of the tables below a heading, or below the heading with this
    beginning."""
    tables = (
        [f"{first}{part}" for part in section(PAGE, heading).split(first)[1:]] if first else [section(PAGE, heading)]
    )
    return {word for table in tables for cells in rows(table.split("\n\n")[0] if first else table)
            for word in re.findall(r"`([^`]+)`", cells[0])}  # fmt: skip


def fields(*messages: Any) -> set[str]:
    return {field.encode_name for message in messages for field in msgspec.structs.fields(message)}


def members(union: Any) -> tuple[Any, ...]:
    return tuple(union.__args__)


def test_every_command_and_its_fields_are_described() -> None:
    assert named("## Commands", "| op |") == set(COMMANDS)
    assert {member.__struct_config__.tag for member in members(Command)} == set(COMMANDS)
    assert named("## Commands", "| field of `publish` |") == fields(Publish) - {"request_id"}
    assert named("## Commands", "| field of `subscribe` |") == fields(Subscribe, SubscribeFrom) - {"request_id"}
    assert named("## Commands", "| field of `unsubscribe` |") == fields(Unsubscribe) - {"request_id"}


def test_every_frame_and_its_fields_are_described() -> None:
    frames = members(ServerFrame)
    assert named("## Frames", "| op |") == {frame.__struct_config__.tag for frame in frames}
    assert named("## Frames", "| field of a frame |") == fields(*frames, Position)


def test_the_numbers_are_those_in_force() -> None:
    text = " ".join(PAGE.split())
    limits = HttpLimits()
    assert f"Up to {websocket.PUBLISHES_MAX} publishes" in text
    assert f"at most {websocket_messages.REQUEST_ID_CHARS_MAX} characters" in text
    assert f"without a byte from the client for {limits.ping_interval_s:g} seconds" in text
    assert f"quiet for {limits.ping_timeout_s:g} more" in text


def test_the_conversation_is_real(tmp_path: Path) -> None:
    [block] = [block for block in blocks(PAGE) if block.startswith(">")]
    with LiveServer(tmp_path) as live, open_socket(live.url) as socket:
        for line in block.splitlines():
            if line.startswith("> "):
                socket.send(line[2:])
            else:
                check_same(json.loads(line.removeprefix("< ")), socket.frame())


@pytest.mark.parametrize("code", [1001, 1002, 1007, 1009, 1011, 1013])
def test_every_close_code_is_described(code: int) -> None:
    assert any(cells[0] == str(code) for cells in rows(section(PAGE, "## Close codes")))
