"""The table of settings, and how variables and flags are read by it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.settings import SETTINGS, Setting, Settings, SettingsError

INTEGERS = [setting for setting in SETTINGS if setting.kind == "integer"]


def value_of(settings: Settings, setting: Setting) -> object:
    return getattr(settings, setting.name)


def by_name(setting: Setting) -> str:
    return setting.name


def test_nothing_given_is_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    for setting in SETTINGS:
        assert value_of(settings, setting) == setting.default


def test_every_setting_is_described() -> None:
    names = [setting.name for setting in SETTINGS]
    assert sorted(names) == sorted(Settings.__struct_fields__)
    for setting in SETTINGS:
        assert setting.env == "TOPICS_" + setting.name.upper()
        assert re.fullmatch(r"[A-Z].*\.", setting.help), setting.name
        assert (setting.minimum is not None) == (setting.kind == "integer")


@pytest.mark.parametrize("setting", INTEGERS, ids=by_name)
def test_the_default_is_within_its_own_bounds(setting: Setting) -> None:
    assert isinstance(setting.default, int)
    assert setting.minimum is not None and setting.minimum <= setting.default
    assert setting.maximum is None or setting.default <= setting.maximum


@pytest.mark.parametrize("setting", INTEGERS, ids=by_name)
def test_the_bounds_themselves_are_accepted(setting: Setting) -> None:
    for bound in (setting.minimum, setting.maximum):
        if bound is not None:
            assert value_of(Settings.from_env({setting.env: str(bound)}), setting) == bound
            assert value_of(Settings.from_env({}, {setting.name: bound}), setting) == bound


@pytest.mark.parametrize("setting", INTEGERS, ids=by_name)
def test_a_value_beyond_a_bound_is_refused(setting: Setting) -> None:
    assert setting.minimum is not None
    beyond = [setting.minimum - 1] + ([] if setting.maximum is None else [setting.maximum + 1])
    for number in beyond:
        with pytest.raises(SettingsError, match=setting.flag):
            Settings.from_env({}, {setting.name: number})
        if (setting.name, number) != ("segment_max_events", 0):
            with pytest.raises(SettingsError, match=setting.env):
                Settings.from_env({setting.env: str(number)})


@pytest.mark.parametrize("setting", INTEGERS, ids=by_name)
@pytest.mark.parametrize("text", ["x", "1.5", "1e3", "0x10", "64MiB", "1_000", "- 1", "٣", "9" * 19])
def test_a_malformed_number_is_refused_with_everything_needed_to_mend_it(setting: Setting, text: str) -> None:
    if setting.name == "wal_shards":
        assert Settings.from_env({setting.env: text}).wal_shards == 0
        return
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({setting.env: text})
    message = str(caught.value)
    assert setting.env in message
    assert repr(text) in message
    assert setting.accepted in message


@pytest.mark.parametrize("setting", SETTINGS, ids=by_name)
def test_a_blank_variable_counts_as_not_set(setting: Setting) -> None:
    for blank in ("", "  "):
        assert Settings.from_env({setting.env: blank}) == Settings()


@pytest.mark.parametrize("setting", SETTINGS, ids=by_name)
def test_a_flag_beats_the_variable(setting: Setting) -> None:
    low: object
    high: object
    if setting.kind == "integer":
        low, high = setting.minimum, setting.maximum or 10**7
    else:
        low, high = (setting.choices or ("a", "b"))[:2]
    env = {setting.env: str(low)}
    assert value_of(Settings.from_env(env, {setting.name: high}), setting) == high
    assert value_of(Settings.from_env(env, {setting.name: None}), setting) == low


def test_an_override_of_no_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown setting: colour"):
        Settings.from_env({}, {"colour": "red"})


@pytest.mark.parametrize("given", [True, 1.5, b"1", ["1"]])
def test_an_override_of_another_type_is_refused(given: object) -> None:
    with pytest.raises(SettingsError, match="--port is"):
        Settings.from_env({}, {"port": given})
    with pytest.raises(SettingsError, match="--data-dir is"):
        Settings.from_env({}, {"data_dir": given})


def test_choices_are_closed() -> None:
    assert Settings.from_env({"TOPICS_LOG_FORMAT": "json"}).log_format == "json"
    with pytest.raises(SettingsError, match="TOPICS_LOG_FORMAT is 'xml'; accepted is one of auto, human, json"):
        Settings.from_env({"TOPICS_LOG_FORMAT": "xml"})


def test_a_segment_of_no_records_is_one_of_a_single_record() -> None:
    assert Settings.from_env({"TOPICS_SEGMENT_MAX_EVENTS": "0"}).segment_max_events == 1


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", ("0.0.0.0", 7000)),
        ("localhost", ("localhost", 7000)),
        ("localhost:8000", ("localhost", 8000)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]", ("::1", 7000)),
        ("[::1]:4000", ("::1", 4000)),
        ("[::ffff:127.0.0.1]:4000", ("::ffff:127.0.0.1", 4000)),
    ],
)
def test_a_host_may_carry_the_port(host: str, expected: tuple[str, int]) -> None:
    settings = Settings.from_env({"TOPICS_HOST": host, "TOPICS_PORT": "7000"})
    assert (settings.host, settings.port) == expected


@pytest.mark.parametrize("host", ["::1", ":4000", "host:", "a:b:c", "[::1", "[]:4000", "[::1]4000", "[::1]:"])
def test_a_host_that_can_be_read_in_two_ways_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="TOPICS_HOST"):
        Settings.from_env({"TOPICS_HOST": host})


@pytest.mark.parametrize("host", ["host:http", "host:65536", "[::1]:-1"])
def test_a_port_within_the_host_is_checked(host: str) -> None:
    with pytest.raises(SettingsError, match="the port of TOPICS_HOST"):
        Settings.from_env({"TOPICS_HOST": host})


def test_a_port_beside_a_host_with_a_port_is_not_even_looked_at() -> None:
    assert Settings.from_env({"TOPICS_HOST": "h:1", "TOPICS_PORT": "junk"}).port == 1


def test_a_port_flag_beats_the_port_within_a_host_variable() -> None:
    settings = Settings.from_env({"TOPICS_HOST": "h:1"}, {"port": 2})
    assert (settings.host, settings.port) == ("h", 2)


def test_a_host_flag_with_a_port_beats_the_port_variable() -> None:
    settings = Settings.from_env({"TOPICS_PORT": "1"}, {"host": "h:2"})
    assert (settings.host, settings.port) == ("h", 2)


@given(st.sampled_from(SETTINGS), st.text(max_size=12))
def test_any_text_is_read_or_refused_and_nothing_else(setting: Setting, text: str) -> None:
    try:
        Settings.from_env({setting.env: text})
    except SettingsError as error:
        assert setting.env in str(error)


@pytest.mark.parametrize("name", ["TOPICS_WAL_FILE_BYTES", "TOPICS_SYNC_INTERVAL_MS"])
def test_out_of_range_settings_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is .*accepted is a whole number from"):
        Settings.from_env({name: "9" * 18})
