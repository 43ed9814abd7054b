"""The library's half of a connection, set up for a server that gives away nothing for free."""

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from topics.http.h2.frames import FRAME_BYTES_MAX
from topics.http.limits import HttpLimits
from topics.http.reader import HTTP2_PREFACE

_TABLE_BYTES_MAX = 4096
"""Of the headers that answers have in common. A client may offer to remember any number, and we would as well."""
_FIELD_BYTES = 32
"""What each field counts besides its letters (RFC 9113, 6.5.2)."""

_CONFIGURATION = H2Configuration(
    client_side=False, validate_inbound_headers=False, normalize_inbound_headers=False,
    validate_outbound_headers=False, normalize_outbound_headers=False,
)  # fmt: skip
"""Headers are checked by `h2.heads`: here a bad one would end the connection, and every stream with it."""


class Session(H2Connection):
    """Frames in, events out, and what is to be sent."""

    # How many ended streams it knows the end of. The library's own number takes megabytes for a connection.
    MAX_CLOSED_STREAMS = 512

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__(_CONFIGURATION)
        streams = limits.http2_streams
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: streams,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.http2_stream_window_bytes,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes,
            },
        )
        self.initiate_connection()
        self.increment_flow_control_window(limits.http2_window_bytes - self.inbound_flow_control_window)
        # A stream too many is refused by itself, as a client may have sent it before it was told. Only who goes on and
        # on loses the connection, which is what the library does.
        self.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * streams + 1
        self.local_settings.acknowledge()
        # In between, a head is refused with a status; beyond, its decoding stops, whatever the bomb would have become.
        self.decoder.max_header_list_size = 2 * (limits.head_bytes + _FIELD_BYTES * limits.headers_count)
        self.receive_data(HTTP2_PREFACE)

    def keep_table_small(self) -> None:
        """To be called whenever the client has changed its settings."""
        if self.encoder.header_table_size > _TABLE_BYTES_MAX:
            self.encoder.header_table_size = _TABLE_BYTES_MAX
