"""Laws of schemas and lenses, on random schemas, lenses and entries.

The proofs are compared with an independent validator: every statement of a proof must be true of every entry.
"""

import json
from typing import Any

from hypothesis import assume, event, given, note
from hypothesis import strategies as st

from tests.property.effort import effort
from topics.model.errors import InvalidRequestError
from topics.schema.contract import parse_profile
from topics.schema.documents import RoutingKey, encode, fresh
from topics.schema.lens_proof import Comparison, Gap, describe, prove_lens, resolve_defaults
from topics.schema.lenses import Lens, Op, compile_ops, parse_lens, run
from topics.schema.registry import (
    Chain,
    CompiledLens,
    Promoter,
    Registry,
    Version,
    decode_registry,
    encode_registry,
    registry_json,
)
from topics.schema.validation import DRAFT_4, DRAFT_7, compile_schema

NAMES = ("a", "b", "c")
WORDS = ("", "x", "Y", "1", "-7", "2026-03-25T10:00:00Z", "long text")

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from((0.5, 1.0, 1e300)), st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)),
    max_leaves=6,
)


def objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], required: list[str], rest: Any) -> dict[str, Any]:
        schema = {"type": "object", "properties": properties, "required": [n for n in properties if n in required]}
        return schema if rest is None else schema | {"additionalProperties": rest}

    return st.builds(
        build,
        st.dictionaries(st.sampled_from(NAMES), members, max_size=3),
        st.lists(st.sampled_from(NAMES), max_size=3, unique=True),
        st.sampled_from((False, False, None, {"type": "string"})),
    )


leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(
        (
            {"type": "string"},
            {"type": "integer"},
            {"type": "number"},
            {"type": "boolean"},
            {"type": ["string", "null"]},
            {"type": "string", "maxLength": 3},
            {"type": "string", "minLength": 1},
            {"type": "string", "format": "date-time"},
            {"type": "integer", "minimum": 0},
            {"type": "integer", "exclusiveMaximum": 2},
            {},
        )
    ),
    st.builds(lambda named: {"enum": named}, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True)),
    st.builds(lambda value: {"const": value}, scalars),
)
shapes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(
            lambda items, least, more: {"type": "array", "items": items, "minItems": least} | more,
            inner,
            st.integers(0, 2),
            st.sampled_from(({}, {"maxItems": 2}, {"uniqueItems": True})),
        ),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.builds(lambda one, other: {"oneOf": [one, other]}, inner, inner),
        st.builds(lambda one, other: {"allOf": [one, other]}, inner, inner),
        st.builds(lambda one, other: one | {"not": other}, inner, inner),
    ),
    max_leaves=5,
)


full_objects = objects(shapes).map(lambda schema: schema | {"required": list(schema["properties"])})
roots = st.one_of(
    objects(shapes),
    st.builds(
        lambda one, inner, items, least: {
            "type": "object",
            "properties": {"a": one, "b": inner, "c": {"type": "array", "items": items, "minItems": least}},
            "required": ["a", "b", "c"],
            "additionalProperties": False,
        },
        leaves,
        full_objects,
        st.one_of(full_objects, leaves),
        st.integers(0, 1),
    ),
)
"""Objects, and besides ones that have something for every op."""


@st.composite
def entries(draw: st.DrawFn, schema: Any) -> Any:
    """Returns a value built for a schema; the validator decides whether it is valid."""
    if isinstance(schema, bool) or not schema:
        return draw(values)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return draw(entries(draw(st.sampled_from(schema[word]))))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = draw(st.sampled_from(kind))
    if kind == "object":
        made = {}
        for name, member in schema.get("properties", {}).items():
            if member is not False and (name in schema.get("required", ()) or draw(st.booleans())):
                made[name] = draw(entries(member))
        rest = schema.get("additionalProperties", True)
        if rest is not False and draw(st.booleans()):
            for name in draw(st.lists(st.sampled_from(("a", "b", "c", "z")), max_size=2)):
                if name not in made and name not in schema.get("properties", {}):
                    made[name] = draw(entries(rest))
        return made
    if kind == "array":
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 2), least + 2)
        return [draw(entries(schema.get("items", True))) for _ in range(draw(st.integers(least, most)))]
    if kind == "string":
        return draw(st.sampled_from(WORDS))
    if kind in ("integer", "number"):
        return draw(st.one_of(st.integers(-3, 3), st.sampled_from((1.0, 1e300, 0.5))))
    return draw(values)


BUILTINS = {
    "string": ("lowercase", "uppercase", "string_to_int", "rfc3339_to_unix_millis"),
    "integer": ("int_to_string", "unix_millis_to_rfc3339"),
}
TYPES = ("string", "integer", "number", "boolean", "null")
tables = st.builds(
    lambda table, default: {"map": table} | default,
    st.dictionaries(st.sampled_from((*WORDS, "true", "0")), scalars, max_size=4),
    st.one_of(st.just({}), st.builds(lambda value: {"default": value}, scalars)),
)


@st.composite
def conversions(draw: st.DrawFn, path: str, schema: Any) -> dict[str, Any]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    source = kind if kind in TYPES else draw(st.sampled_from(TYPES))
    named = st.sampled_from(BUILTINS.get(source, ("lowercase",))).map(lambda name: {"builtin": name})
    forward = draw(st.one_of(named, tables))
    to = draw(st.sampled_from(("string", "integer") if "builtin" in forward else TYPES))
    back = {"builtin": "lowercase"}
    return {"op": "convert", "path": path, "fromType": source, "toType": to, "forward": forward, "backward": back}


@st.composite
def ops_for(draw: st.DrawFn, schema: Any, inside: bool = False) -> dict[str, Any]:
    """An op about a member that a schema declares, which may still be unprovable."""
    members = schema.get("properties", {}) if isinstance(schema, dict) else {}
    name = draw(st.sampled_from(sorted(members) or NAMES))
    member = members.get(name, True)
    path, to = f"/{name}", f"/{draw(st.sampled_from(NAMES))}"
    choices: list[str] = ["rename", "copy", "add", "remove", "wrap", "plunge", "convert", "convert"]
    kind = member.get("type") if isinstance(member, dict) else None
    if kind == "object":
        choices += ["hoist", "hoist", "rename below", *([] if inside else ["in"] * 4)]
    if kind == "array":
        choices += ["head", "head", *([] if inside else ["map"] * 4)]
    choice = draw(st.sampled_from(choices))
    match choice:
        case "rename" | "copy":
            return {"op": choice, "from": path, "to": to}
        case "rename below":
            below = draw(st.sampled_from(sorted(member.get("properties", {})) or NAMES))
            return {"op": "rename", "from": f"{path}/{below}", "to": draw(st.sampled_from((to, path + to)))}
        case "add":
            return {"op": "add", "path": to, "schema": True, "default": draw(values)}
        case "remove":
            return {"op": "remove", "path": path, "schema": True}
        case "hoist":
            below = draw(st.sampled_from(sorted(member.get("properties", {})) or NAMES))
            return {"op": "hoist", "host": path, "name": below, "to": to, "removeFromHost": draw(st.booleans())}
        case "plunge":
            more = {"createHost": draw(st.booleans()), "removeFromSource": draw(st.booleans())}
            return {"op": "plunge", "from": path, "host": to, "name": draw(st.sampled_from(NAMES)), **more}
        case "wrap":
            return {"op": "wrap", "path": path, "mode": "singleton"}
        case "head":
            return {"op": "head", "path": path}
        case "convert":
            return draw(conversions(path, member))
        case "in":
            return {"op": "in", "path": path, "ops": [draw(ops_for(member, inside=True))]}
    items = member.get("items", True)
    inner = ops_for(items, inside=True) if isinstance(items, dict) and "properties" in items else conversions("", items)
    return {"op": "map", "path": path, "ops": [draw(inner)]}


def read(*documents: dict[str, Any]) -> Lens:
    return parse_lens({"apiVersion": "durable.lens/v1", "schema": "s", "from": 1, "to": 2, "ops": list(documents)})


@st.composite
def sound_ops(draw: st.DrawFn, schema: dict[str, Any], most: int = 3) -> tuple[list[Op], dict[str, Any]]:
    """Ops that never fail on valid values of `schema`, found by trying, and a schema of their results."""
    found: list[Op] = []
    known: Any = schema
    for _ in range(8):
        op = read(draw(ops_for(known))).ops[0]
        try:
            known = describe([op], known)
        except InvalidRequestError:
            continue
        event(f"op {type(op).__name__}")
        found.append(op)
        if len(found) == most:
            break
    assume(found)
    return found, known


def odd_words(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Keywords that a proof does not handle, and must not be misled by."""
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    return st.one_of(
        st.builds(lambda schema: {"patternProperties": {"^[ab]$": schema}}, inner),
        st.builds(lambda one, rest: {"patternProperties": {"b": one}, "additionalProperties": rest}, inner, inner),
        st.builds(lambda members: {"dependencies": members}, named),
        st.builds(lambda members: {"dependentSchemas": members}, named),
        st.builds(lambda one, rest: {"items": [one], "additionalItems": rest}, inner, inner),
        st.builds(lambda one, rest: {"prefixItems": [one], "items": rest}, inner, inner),
        st.builds(lambda one: {"contains": one, "minContains": 0}, inner),
        st.builds(lambda one: {"contains": one}, inner),
        st.builds(lambda one, other, third: {"if": one, "then": other, "else": third}, inner, inner, inner),
        st.builds(lambda one, members: {"properties": members, "unevaluatedProperties": one}, inner, named),
        st.builds(lambda one, other: {"prefixItems": [other], "unevaluatedItems": one}, inner, inner),
        st.sampled_from(
            (
                {"minProperties": 1},
                {"maxProperties": 1},
                {"required": ["a"], "minProperties": 1},
                {"propertyNames": {"enum": ["a"]}},
                {"dependentRequired": {"a": ["b"]}},
                {"multipleOf": 2},
                {"minimum": 1, "exclusiveMinimum": True},
                {"maximum": 1},
                {"exclusiveMinimum": 1},
                {"pattern": "^x"},
                {"maxItems": 0},
                {"maxItems": 1, "uniqueItems": True},
            )
        ),
    )


odd_shapes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        odd_words(inner),
        st.builds(lambda one, other: {**one, **other}, odd_words(inner), st.one_of(odd_words(inner), objects(inner))),
        st.builds(lambda one, other: {"allOf": [one], **other}, inner, odd_words(inner)),
    ),
    max_leaves=5,
)


@given(st.data(), st.sampled_from((DRAFT_4, "draft-06", DRAFT_7, "2019-09", "2020-12")))
@effort(250)
def test_subsumed_schema_is_allowed(data: st.DataObject, draft: str) -> None:
    narrow = data.draw(st.one_of(shapes, odd_shapes))
    changed = st.builds(lambda more: {**narrow, **more}, odd_shapes)
    fewer = st.builds(
        lambda word: {name: value for name, value in narrow.items() if name != word},
        st.sampled_from(sorted(narrow) or ["a"]),
    )
    wide = data.draw(st.one_of(shapes, odd_shapes, changed, fewer, st.just({"anyOf": [{"type": "null"}, narrow]})))
    try:
        inside, outside = compile_schema(narrow, draft), compile_schema(wide, draft)
        Comparison(draft).require(narrow, wide)
    except InvalidRequestError:
        event("no schema of its draft")
        return
    except Gap:
        event("not shown")
        return
    event("shown")
    for value in data.draw(st.lists(st.one_of(entries(narrow), values), min_size=3, max_size=6)):
        if inside.is_valid(value):
            assert outside.is_valid(value), (narrow, wide, value)


@given(shapes)
@effort(100)
def test_every_schema_is_within_itself(schema: dict[str, Any]) -> None:
    Comparison(DRAFT_7).require(schema, fresh(schema))


@given(st.data())
@effort(100)
def test_ops_never_fail_on_a_valid_entry_and_make_what_is_described(data: st.DataObject) -> None:
    old = data.draw(roots)
    found, known = data.draw(sound_ops(old))
    steps = compile_ops(found)
    valid, described = compile_schema(old, DRAFT_7), compile_schema(known, DRAFT_7)
    for entry in data.draw(st.lists(entries(old), min_size=2, max_size=5)):
        if valid.is_valid(entry):
            event("an entry that is valid")
            promoted = run(steps, fresh(entry))
            assert described.is_valid(promoted), (old, found, entry, promoted, known)


@given(st.data())
@effort(100)
def test_a_proven_lens_leads_every_valid_entry_to_a_valid_one(data: st.DataObject) -> None:
    """The new schema is the result of the ops, with something changed: some of these are proven, some are not."""
    old = data.draw(roots)
    found, known = data.draw(sound_ops(old))
    new = fresh(known)
    members = new.setdefault("properties", {})
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=2)):
        members[name] = data.draw(shapes)
    if data.draw(st.booleans()):
        new["required"] = data.draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    lens = Lens("s", 1, 2, tuple(found))
    try:
        prove_lens(lens, old, new)
    except InvalidRequestError:
        event("not proven")
        return
    event("proven")
    chain = Chain([CompiledLens(resolve_defaults(lens.ops, new))])
    valid, allowed = compile_schema(old, DRAFT_7), compile_schema(new, DRAFT_7)
    for entry in data.draw(st.lists(entries(old), min_size=2, max_size=5)):
        if valid.is_valid(entry):
            promoted = chain.apply(fresh(entry), 100)
            assert allowed.is_valid(promoted), (old, found, new, entry, promoted)


@given(st.data())
@effort(50)
def test_a_chain_of_lenses_does_what_they_do_one_by_one(data: st.DataObject) -> None:
    schema = data.draw(roots)
    known = schema
    lenses: list[list[Op]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        found, known = data.draw(sound_ops(known, most=2))
        lenses.append(found)
    entry = data.draw(entries(schema))
    assume(compile_schema(schema, DRAFT_7).is_valid(entry))
    promoter = Promoter(range(len(lenses) + 1), lenses)
    expected = fresh(entry)
    for version, found in enumerate(lenses, 1):
        assert promoter.version_of(version - 1) == version
        rest = promoter.chain(version).apply(fresh(expected), 100)
        expected = run(compile_ops(found), expected)
        if version < len(lenses):
            assert rest == promoter.chain(version + 1).apply(fresh(expected), 100)
        else:
            assert rest == expected


THERE_AND_BACK: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"op": "rename", "from": "/a", "to": "/z"}], [{"op": "rename", "from": "/z", "to": "/a"}]),
    ([{"op": "wrap", "path": "/a", "mode": "singleton"}], [{"op": "head", "path": "/a"}]),
    (
        [{"op": "plunge", "from": "/a", "host": "/z", "name": "n"}],
        [{"op": "hoist", "host": "/z", "name": "n", "to": "/a"}, {"op": "remove", "path": "/z", "schema": True}],
    ),
    ([{"op": "copy", "from": "/a", "to": "/z"}], [{"op": "remove", "path": "/z", "schema": True}]),
    (
        [{"op": "add", "path": "/z", "schema": True, "default": {"n": 1}}],
        [{"op": "remove", "path": "/z", "schema": True}],
    ),
]


@given(st.dictionaries(st.sampled_from(NAMES), values), values, st.sampled_from(THERE_AND_BACK))
@effort(100)
def test_ops_with_a_way_back_lead_back(
    entry: dict[str, Any], value: Any, ways: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    entry["a"] = value
    there, back = (compile_ops(read(*way).ops) for way in ways)
    assert run(back, run(there, fresh(entry))) == entry


@given(st.integers(-(10**30), 10**30), st.integers(-62_135_596_800_000, 253_402_300_799_999))
@effort(100)
def test_conversions_with_a_way_back_lead_back(number: int, millis: int) -> None:
    note(f"{number} {millis}")
    for value, there, back in (
        (number, "int_to_string", "string_to_int"),
        (millis, "unix_millis_to_rfc3339", "rfc3339_to_unix_millis"),
    ):
        ways = [
            read(
                {
                    "op": "convert",
                    "path": "/a",
                    "fromType": "integer",
                    "toType": "string",
                    "forward": {"builtin": builtin},
                    "backward": {"builtin": "lowercase"},
                }
            )
            for builtin in (there, back)
        ]
        assert run([step for way in ways for step in compile_ops(way.ops)], {"a": value}) == {"a": value}


versions = st.builds(Version, st.just(b"{}"), st.one_of(st.none(), st.just(b"{}")), st.integers(0, 2**63))


@given(
    st.builds(
        Registry,
        st.lists(versions, max_size=4).map(tuple),
        st.one_of(st.none(), st.builds(RoutingKey, st.text(max_size=5), st.booleans())),
        st.one_of(st.none(), st.just(b"{}")),
    )
)
@effort(100)
def test_a_registry_comes_back_from_its_bytes(registry: Registry) -> None:
    again = decode_registry(encode_registry(registry))
    assert again == registry
    assert registry_json(again, "s") == registry_json(registry, "s")


SPAN = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "086e83747d0e381e", "name": "n", "startUnixNano": "5"}
INTERVAL = {"metric": "m", "unit": "u", "windowStart": 1, "windowEnd": 2, "count": 1, "sum": 1}
PROFILED: list[tuple[str, dict[str, Any], str]] = [
    (
        "evlog",
        {},
        "timestamp level status duration requestId traceId context sampling redaction why password traceContext "
        "headers user traceparent",
    ),
    ("metrics", INTERVAL, "tags attributes buckets min avg p50 stream intervalMs dimensionKey"),
    (
        "otel-traces",
        SPAN,
        "attributes resource events links status kind http db error duration dropped redaction eventNames endUnixNano "
        "instrumentationScope requestId droppedEventsCount",
    ),
]
"""Each entry has the name, its requirements and the members that it reads."""
odd_names = st.sampled_from(
    (
        "keys",
        "key",
        "value",
        "password",
        "Token",
        "traceId",
        "traceparent",
        "attributes",
        "http.method",
        "statusCode",
        "2",
    )
)
odd_values = st.recursive(
    st.one_of(scalars, st.sampled_from(("200", "1e3", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "[REDACTED]"))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_names, inner, max_size=3)),
    max_leaves=8,
)


@given(st.data(), st.sampled_from(PROFILED))
@effort(150)
def test_whatever_a_profile_takes_is_canonical_and_stays_so(
    data: st.DataObject, profiled: tuple[str, dict[str, Any], str]
) -> None:
    kind, base, names = profiled
    profile = parse_profile({"kind": kind})
    canonical = profile.canonical()
    assert canonical is not None
    came = base | data.draw(st.dictionaries(st.sampled_from(names.split()), odd_values, max_size=6))
    stored = profile.normalise(0, fresh(came), 1_000)
    note(f"{came}")
    assert compile_schema(canonical.schema, DRAFT_7).is_valid(stored), stored
    assert profile.normalise(0, fresh(stored), 2_000) == stored


plain_times = st.sampled_from(("2026-03-01T10:00:00.000Z", "2026-03-01T10:00:00.000Z", "2026-03-01T10:00:00Z"))
plain_events: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"timestamp": plain_times},
    optional={
        "level": st.sampled_from(("info", "ERROR", "odd", None)),
        "status": st.sampled_from((200, 404, 503, 200.0, 1e30, "200", None, 12345678901234567890)),
        "duration": st.sampled_from((1, 2.5, -0.0, 1e300, None, True, "x")),
        "context": st.sampled_from((None, {})),
        **{
            name: st.sampled_from(("a", "b c", "GET", None, "", " a", "\u00e9", 1))
            for name in ("requestId", "traceId", "message", "why", "service", "user")
        },
    },
)


@given(st.lists(plain_events, min_size=1, max_size=3), st.booleans())
@effort(300)
def test_what_is_stated_of_plain_events_at_once_is_what_is_stated_of_each(events: list[Any], compact: bool) -> None:
    profile = parse_profile({"kind": "evlog"})
    raws = [json.dumps(event, separators=(",", ":") if compact else None).encode() for event in events]
    plain = profile.make_plain(raws)
    if plain is not None:
        one_by_one = [profile.normalise(index, event, 1_000) for index, event in enumerate(map(fresh, events))]
        assert plain == (list(map(encode, one_by_one)), list(map(profile.key_of, one_by_one)))


def test_events_are_plain_as_clients_send_them() -> None:
    event = {"timestamp": "2026-03-01T10:00:00.000Z", "requestId": "r", "method": "GET", "status": 503, "duration": 1.5}
    plain = parse_profile({"kind": "evlog"}).make_plain([json.dumps(event, separators=(",", ":")).encode()])
    assert plain is not None
    assert json.loads(plain[0][0])["level"] == "error"
