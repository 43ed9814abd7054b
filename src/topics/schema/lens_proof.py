"""The proof that a lens is sound: it fails for no entry that is valid under the old schema, and its results are valid
under the new schema.

The ops are applied to the old schema instead of an entry (abstract interpretation). The schema at a path after an op
describes every possible value there; a keyword that an op may have invalidated is dropped, so the description may only
be too wide. At the end the new schema must allow all of it.

An op reads only members that certainly exist: every object on its path is of type `object`, declares the next member
and requires it. It writes only members that the new schema declares.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import jsonschema_rs
import msgspec
from msgspec import UNSET

from topics.model.errors import InvalidRequestError, quoted
from topics.schema.documents import MAX_PROOF_STEPS, fresh, parse_pointer, same, show_pointer
from topics.schema.lenses import (
    BUILTIN_TYPES,
    PARTIAL,
    Add,
    Convert,
    Copy,
    Head,
    Hoist,
    In,
    Lens,
    Map,
    Op,
    Plunge,
    Remove,
    Rename,
    Wrap,
    conversion,
)
from topics.schema.validation import DRAFT_4, check_schema, compile_schema, draft_of, members_in

# Schema subsumption: whether every value that one schema allows is allowed by another.
#
# The answer is sound and not complete: «yes» is always true, «no» may mean that it cannot be proven here. Every
# assertion of the wider schema must be implied by the narrower one: by its keyword, by its enumerated values, which are
# then tried one by one, or by an identical keyword.

Schema = dict[str, Any] | bool
Path = tuple[str, ...]

_ABSENT: Final = object()
"""A missing keyword. Not None, because `const` may be null."""

TYPES: Final = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))

_OBJECT_WORDS: Final = ("properties", "patternProperties", "additionalProperties")
_ARRAY_WORDS: Final = ("items", "prefixItems", "additionalItems")
_TOGETHER: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_OBJECT_WORDS, _OBJECT_WORDS),
    **dict.fromkeys(_ARRAY_WORDS, _ARRAY_WORDS),
    **dict.fromkeys(("if", "then", "else"), ("if", "then", "else")),
    **dict.fromkeys(("contains", "minContains", "maxContains"), ("contains", "minContains", "maxContains")),
    **dict.fromkeys(("minimum", "exclusiveMinimum"), ("minimum", "exclusiveMinimum")),
    **dict.fromkeys(("maximum", "exclusiveMaximum"), ("maximum", "exclusiveMaximum")),
}
"""Keywords that depend on each other: they are equal only if all of them are equal."""

_WORDS_BY_TYPES: Final[dict[frozenset[str], str]] = {
    frozenset(("string",)): "minLength maxLength pattern format",
    frozenset(("number", "integer")): "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    frozenset(("array",)): (
        "items prefixItems additionalItems unevaluatedItems minItems maxItems uniqueItems "
        "contains minContains maxContains"
    ),
    frozenset(("object",)): (
        "properties patternProperties additionalProperties unevaluatedProperties required minProperties maxProperties "
        "propertyNames dependencies dependentRequired dependentSchemas"
    ),
    TYPES: "type enum const anyOf oneOf allOf not if then else",
}
_TYPE_OF_WORD: Final = {word: types for types, words in _WORDS_BY_TYPES.items() for word in words.split()}
"""Every assertion of any draft, with the types that it applies to. All other keywords are annotations."""


def types_of(schema: Schema) -> frozenset[str]:
    """Returns the types that a schema's `type` allows."""
    if isinstance(schema, bool):
        return TYPES if schema else frozenset()
    given = schema.get("type")
    if given is None:
        return TYPES
    return frozenset([given] if isinstance(given, str) else given)


class Gap(Exception):
    """A path at which one schema allows something that the other may not."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class ProofTooLongError(InvalidRequestError):
    """A proof exceeds its number of comparisons."""


class Comparison:
    """The comparisons of a proof, within its budget of steps. Both schemas use the same draft."""

    def __init__(self, draft: str, steps_max: int = MAX_PROOF_STEPS) -> None:
        self._draft = draft
        self._steps = 0
        self._steps_max = steps_max

    def require(self, narrow: Schema, wide: Schema, path: Path = ()) -> None:
        """Returns if everything that `narrow` allows is allowed by `wide`. Raises `Gap` if that cannot be shown."""
        self._spend(1)
        if wide is True or narrow is False or same(narrow, wide):
            return
        if wide is False:
            raise Gap(path, "nothing may be here")
        given: dict[str, Any] = {} if isinstance(narrow, bool) else narrow
        values = self.values_of(given)
        if values is not None:
            judge = self.judge(wide)
            for value in values:
                if not judge.is_valid(value):
                    raise Gap(path, f"{_show(value)} is possible here, and the new schema does not allow it")
            return
        if self._by_branches(given, wide, path):
            return
        types = types_of(given)
        for word in wide:
            speaks_of = _TYPE_OF_WORD.get(word)
            if speaks_of is not None and types & speaks_of:
                self._require_word(word, given, wide, path)

    def is_within(self, narrow: Schema, wide: Schema, path: Path = ()) -> bool:
        try:
            self.require(narrow, wide, path)
        except Gap:
            return False
        return True

    def values_of(self, schema: Schema) -> list[Any] | None:
        """Returns all values that a schema allows, if it enumerates them; otherwise None."""
        if isinstance(schema, bool):
            return None if schema else []
        if "enum" in schema:
            named = list(schema["enum"])
        elif "const" in schema and self._draft != DRAFT_4:
            named = [schema["const"]]
        elif types_of(schema) <= {"boolean", "null"}:
            named = [True, False, None]
        else:
            return None
        judge = self.judge(schema)
        return [value for value in named if judge.is_valid(value)]

    def judge(self, schema: Schema) -> jsonschema_rs.Validator:
        """Returns a validator, and charges its cost to the budget: many large ones take long."""
        self._spend(members_in(schema))
        return compile_schema(schema, self._draft)

    def spend_on(self, schema: Schema) -> None:
        """Charges for a grown schema: a copying op may double it."""
        self._spend(members_in(schema))

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._steps_max:
            raise ProofTooLongError("the schemas are too complex to prove a lens between them", max=MAX_PROOF_STEPS)

    def _by_branches(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> bool:
        for word in ("anyOf", "oneOf"):
            if word in narrow and all(self.is_within(branch, wide, path) for branch in narrow[word]):
                return True
        return any(self.is_within(branch, wide, path) for branch in narrow.get("allOf", ()))

    def _require_word(self, word: str, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        together = _TOGETHER.get(word, (word,))
        # Unevaluated members depend on everything else in the schema, so equal keywords may differ in meaning.
        if not word.startswith("unevaluated") and all(
            same(narrow.get(name, _ABSENT), wide.get(name, _ABSENT)) for name in together
        ):
            return
        rule = _RULES.get(word)
        if rule is None:
            raise Gap(path, f"{word} differs, and nothing shows that the new one allows what the old one did")
        rule(self, narrow, wide, path)

    def _type(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        allowed = types_of(wide)
        for name in sorted(types_of(narrow)):
            if name not in allowed and not (name == "integer" and "number" in allowed):
                raise Gap(path, f"{name} is possible here, and the new schema asks for {' or '.join(sorted(allowed))}")

    def _any_of(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        if any(self.is_within(narrow, branch, path) for branch in wide["anyOf"]):
            return
        types = types_of(narrow)
        if len(types) < 2 or types == TYPES:
            raise Gap(path, "no branch of anyOf allows all that is possible here")
        for name in sorted(types):
            self.require({**narrow, "type": name}, {"anyOf": wide["anyOf"]}, path)

    def _all_of(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        for branch in wide["allOf"]:
            self.require(narrow, branch, path)

    def _members(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        if "patternProperties" in wide:
            raise Gap(path, "patternProperties differ")
        ours, theirs = narrow.get("properties", {}), wide.get("properties", {})
        rest = other_members(narrow)
        for name, schema in theirs.items():
            self.require(ours.get(name, rest), schema, (*path, name))
        allowed = wide.get("additionalProperties", True)
        for name, schema in ours.items():
            if name not in theirs:
                self.require(schema, allowed, (*path, name))
        self.require(rest, allowed, (*path, "*"))

    def _elements(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        items, allowed = narrow.get("items", True), wide.get("items", True)
        others = {word for word in _ARRAY_WORDS if word != "items" and (word in narrow or word in wide)}
        if others or isinstance(items, list) or isinstance(allowed, list):
            raise Gap(path, "the elements of an array are described one by one, and differ")
        if narrow.get("maxItems") != 0:
            self.require(items, allowed, (*path, "*"))


def other_members(schema: dict[str, Any]) -> Schema:
    """Returns the schema of members that `properties` does not name.

    A pattern may add constraints; the proof does not rely on them.
    """
    if "patternProperties" in schema:
        return True
    rest: Schema = schema.get("additionalProperties", True)
    return rest


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _required(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
    missing = [name for name in wide["required"] if name not in narrow.get("required", ())]
    if missing:
        raise Gap((*path, missing[0]), "the new schema requires it, and it may be missing")


def _at_most(word: str) -> Callable[[Comparison, dict[str, Any], dict[str, Any], Path], None]:
    def rule(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        if not any(bound <= wide[word] for bound in _uppers(word, narrow)):
            raise Gap(path, f"{word} is {wide[word]} in the new schema, and more is possible here")

    return rule


def _at_least(word: str) -> Callable[[Comparison, dict[str, Any], dict[str, Any], Path], None]:
    def rule(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        if wide[word] > 0 and not any(bound >= wide[word] for bound in _lowers(word, narrow)):
            raise Gap(path, f"{word} is {wide[word]} in the new schema, and less is possible here")

    return rule


def _uppers(word: str, narrow: dict[str, Any]) -> Iterator[float]:
    if word in narrow:
        yield narrow[word]
    if word == "maxProperties" and other_members(narrow) is False:
        yield sum(1 for schema in narrow.get("properties", {}).values() if schema is not False)


def _lowers(word: str, narrow: dict[str, Any]) -> Iterator[float]:
    if word in narrow:
        yield narrow[word]
    if word == "minProperties":
        yield len(set(narrow.get("required", ())))


def _bound(word: str, strict: str, sign: int) -> Callable[[Comparison, dict[str, Any], dict[str, Any], Path], None]:
    """Compares numeric bounds such as `minimum`.

    In draft 4 the strict form is a flag; then only identical keywords are accepted.
    """

    def rule(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        flags = [schema.get(name) for schema in (narrow, wide) for name in (word, strict)]
        shown = not any(isinstance(flag, bool) for flag in flags)
        if shown and word in wide:
            bounds = [narrow[name] for name in (word, strict) if name in narrow]
            shown = any(sign * bound >= sign * wide[word] for bound in bounds)
        if shown and strict in wide:
            shown = (strict in narrow and sign * narrow[strict] >= sign * wide[strict]) or (
                word in narrow and sign * narrow[word] > sign * wide[strict]
            )
        if not shown:
            raise Gap(path, f"{word} or {strict} is narrower in the new schema")

    return rule


def _unique(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
    if wide["uniqueItems"] and not narrow.get("uniqueItems") and narrow.get("maxItems", 2) > 1:
        raise Gap(path, "the new schema asks for uniqueItems")


def _format(_: Comparison, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
    if wide["format"] == "date-time" and narrow.get("format") != "date-time":
        raise Gap(path, "the new schema asks for a date-time, and other texts are possible here")


_Rule = Callable[[Comparison, dict[str, Any], dict[str, Any], Path], None]
_RULES: Final[dict[str, _Rule]] = {
    "type": Comparison._type,
    "anyOf": Comparison._any_of,
    "allOf": Comparison._all_of,
    "properties": Comparison._members,
    "additionalProperties": Comparison._members,
    "items": Comparison._elements,
    "required": _required,
    "format": _format,
    "uniqueItems": _unique,
    "minimum": _bound("minimum", "exclusiveMinimum", 1),
    "exclusiveMinimum": _bound("minimum", "exclusiveMinimum", 1),
    "maximum": _bound("maximum", "exclusiveMaximum", -1),
    "exclusiveMaximum": _bound("maximum", "exclusiveMaximum", -1),
    **{word: _at_most(word) for word in ("maxLength", "maxItems", "maxProperties")},
    **{word: _at_least(word) for word in ("minLength", "minItems", "minProperties")},
}


_MAX_MAPPED_DEFAULT_BYTES = 64
"""The maximum number of values that an `add` may set in each element of an array."""


def resolve_defaults(ops: Sequence[Op], target: Schema) -> tuple[Op, ...]:
    """Returns the ops with the default of every `add` filled in: from the op, otherwise from the new schema, otherwise
    the empty object or array."""
    return tuple(_resolve_default(op, target) for op in ops)


def prove_lens(lens: Lens, old: dict[str, Any], new: dict[str, Any], steps_max: int = MAX_PROOF_STEPS) -> None:
    """Returns if the lens is sound, otherwise refuses it. Raises `ProofTooLongError` after too many comparisons."""
    draft = draft_of(old)
    if draft_of(new) != draft:
        raise InvalidRequestError("a lens between two drafts of JSON Schema cannot be proven", field="schema.$schema")
    comparison = Comparison(draft, steps_max)
    scope = _Scope(comparison, fresh(old), new)
    scope.apply(resolve_defaults(lens.ops, new), "lens.ops")
    scope.check_written("lens.ops")
    try:
        comparison.require(scope.known, new)
    except Gap as gap:
        where = show_pointer(gap.path) or "the top"
        raise InvalidRequestError(
            f"{scope.writer_of(gap.path)} schema incompatible: {quoted(where)[1:-1]}: {gap.reason}", field="lens"
        ) from None


def describe(ops: Sequence[Op], old: dict[str, Any]) -> Schema:
    """Returns a schema of all results of the ops on entries that `old` allows."""
    scope = _Scope(Comparison(draft_of(old)), fresh(old), True)
    scope.apply(ops, "lens.ops")
    return scope.known


class _Scope:
    """Applies the ops of one level: of the lens, of one `in`, or of one `map`."""

    def __init__(self, comparison: Comparison, known: Schema, target: Schema, *, mapped: bool = False) -> None:
        self.known = known
        self._comparison = comparison
        self._target = target
        self._mapped = mapped
        self._written: dict[Path, str] = {}
        """The op that wrote the value at each path."""
        self._inner: list[tuple[_Scope, str]] = []

    def apply(self, ops: Sequence[Op], what: str) -> None:
        for index, op in enumerate(ops):
            self._apply(op, f"{what}[{index}]")

    def check_written(self, what: str) -> None:
        """Refuses a lens with results that the new schema does not declare."""
        for path in self._written:
            if _declared(self._target, path) is None:
                raise _unsound(what, f"{show_pointer(path)} is not declared in the new schema")
        for inner, within in self._inner:
            inner.check_written(within)

    def writer_of(self, path: Path) -> str:
        """Returns the op that wrote the value at a path."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._written:
                return self._written[path[:length]]
        return "lens"

    def _apply(self, op: Op, what: str) -> None:
        match op:
            case Rename() | Copy():
                self._move(_tokens(op.source), _tokens(op.to), isinstance(op, Rename), op, what)
            case Hoist():
                self._move((*_tokens(op.host), op.name), _tokens(op.to), op.remove_from_host, op, what)
            case Plunge():
                self._plunge(op, what)
            case Add():
                self._add(op, what)
            case Remove():
                self._take(_tokens(op.path), what, remove=True, certain=False)
            case Wrap():
                path = _tokens(op.path)
                only = {"type": "array", "items": self._read(path, what), "minItems": 1, "maxItems": 1}
                self._change(path, only, op, what)
            case Head():
                self._head(op, what)
            case Convert():
                path = _tokens(op.path)
                self._change(path, self._converted(op, self._read(path, what), what), op, what)
            case In():
                path = _tokens(op.path)
                inner = _Scope(
                    self._comparison, self._read(path, what), _below(self._target, path), mapped=self._mapped
                )
                _object_at(inner.known, (), what)
                self._run(inner, op.ops, f"{what}.ops")
                self._change(path, inner.known, op, what)
            case Map():
                self._map(op, what)

    def _run(self, inner: "_Scope", ops: Sequence[Op], what: str) -> None:
        inner.apply(ops, what)
        # A member that a later op moves is not declared here; the final comparison finds it at its new path.
        if isinstance(inner._target, dict):
            self._inner.append((inner, what))

    def _move(self, source: Path, to: Path, remove: bool, op: Op, what: str) -> None:
        value = self._take(source, what, remove=remove)
        self._write(to, value, op, what)

    def _plunge(self, op: Plunge, what: str) -> None:
        value = self._take(_tokens(op.source), what, remove=op.remove_from_source)
        *above, host = _tokens(op.host) or _refuse_top(what)
        outer = _object_at(self._root(what), tuple(above), what)
        present: Schema = outer["properties"].get(host, outer["additionalProperties"])
        if not op.create_host or (present is not False and host in outer["required"]):
            inside = _object_at(present, (), what)
        elif present is False:
            inside = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        elif host in outer["properties"]:
            # It may be missing, and then its required members are missing, too.
            inside = {**_object_at(present, (), what), "required": []}
        else:
            inside = {"type": "object", "properties": {}, "required": [], "additionalProperties": True}
        if not op.create_host and host not in outer["required"]:
            raise _unsound(what, f"{op.host} may be missing")
        outer["properties"][host] = inside
        _include(outer["required"], host)
        self._write((*above, host, op.name), value, op, what)

    def _add(self, op: Add, what: str) -> None:
        schema = check_schema(op.schema, f"{what}.schema") if isinstance(op.schema, dict) else op.schema
        if op.default is UNSET:
            raise _unsound(what, "it has no default, and neither has the new schema")
        if not self._comparison.judge(schema).is_valid(op.default):
            raise _unsound(what, "its default is not valid under its schema")
        if self._mapped and len(msgspec.json.encode(op.default)) > _MAX_MAPPED_DEFAULT_BYTES:
            raise _unsound(what, f"within a map, a default has at most {_MAX_MAPPED_DEFAULT_BYTES} bytes")
        self._write(_tokens(op.path), {"enum": [op.default]}, op, what)

    def _head(self, op: Head, what: str) -> None:
        path = _tokens(op.path)
        array = self._read(path, what)
        if types_of(array) != {"array"} or not isinstance(array, dict):
            raise _unsound(what, f"{op.path} is not certain to be an array")
        if array.get("minItems", 0) < 1:
            raise _unsound(what, f"{op.path} may be empty: its minItems must be at least 1")
        first: Any = array.get("items", True)
        if "prefixItems" in array:
            first = True
        elif isinstance(first, list):
            first = first[0] if first else True
        self._change(path, first, op, what)

    def _converted(self, op: Convert, source: Schema, what: str) -> Schema:
        try:
            self._comparison.require(source, {"type": op.from_type})
        except Gap as gap:
            raise _unsound(what, f"fromType is {op.from_type}: {gap.reason}") from None
        values = self._comparison.values_of(source)
        result = self._outcome(op, values, what)
        try:
            self._comparison.require(result, {"type": op.to_type})
        except Gap as gap:
            raise _unsound(what, f"toType is {op.to_type}: {gap.reason}") from None
        return result

    def _outcome(self, op: Convert, values: list[Any] | None, what: str) -> Schema:
        forward = op.forward
        if forward.builtin is not UNSET:
            takes, gives = BUILTIN_TYPES[forward.builtin]
            if op.from_type != takes:
                raise _unsound(what, f"{forward.builtin} takes {takes}")
            if values is None and forward.builtin not in PARTIAL:
                return gives
            if values is None:
                raise _unsound(what, f"{forward.builtin} needs a source with enum or const")
        elif values is None:
            if forward.default is UNSET:
                raise _unsound(what, "a map without a default needs a source with enum or const")
            return _one_of([*(forward.map or {}).values(), forward.default])
        convert = conversion(forward)
        try:
            return _one_of([convert(value) for value in values])
        except (LookupError, ValueError):
            raise _unsound(what, "some value of the source has no counterpart") from None

    def _map(self, op: Map, what: str) -> None:
        path = _tokens(op.path)
        array = self._read(path, what)
        if types_of(array) != {"array"} or not isinstance(array, dict):
            raise _unsound(what, f"{op.path} is not certain to be an array")
        if isinstance(array.get("items"), list) or "prefixItems" in array:
            raise _unsound(what, f"the elements of {op.path} are described one by one")
        wide = _below(self._target, path)
        allowed: Any = wide.get("items", True) if isinstance(wide, dict) else True
        inner = _Scope(
            self._comparison, array.get("items", True), allowed if isinstance(allowed, dict) else True, mapped=True
        )
        self._run(inner, op.ops, f"{what}.ops")
        mapped: dict[str, Any] = {"type": "array", "items": inner.known}
        mapped.update((word, array[word]) for word in ("minItems", "maxItems") if word in array)
        self._change(path, mapped, op, what)

    def _root(self, what: str) -> Schema:
        """Returns a mutable copy of the top-level schema."""
        self.known = _object_at(self.known, (), what)
        return self.known

    def _read(self, path: Path, what: str) -> Schema:
        return cast(Schema, fresh(self.known)) if not path else self._take(path, what, remove=False)

    def _take(self, path: Path, what: str, *, remove: bool, certain: bool = True) -> Schema:
        *above, name = path or _refuse_top(what)
        parent = _object_at(self._root(what), tuple(above), what)
        value: Schema = parent["properties"].get(name, False)
        if value is False:
            raise _unsound(what, f"{show_pointer(path)} does not exist in the old schema")
        if certain and name not in parent["required"]:
            raise _unsound(what, f"{show_pointer(path)} is not required in the old schema")
        if remove:
            parent["properties"][name] = False
            parent["required"] = [other for other in parent["required"] if other != name]
            self._written = {done: op for done, op in self._written.items() if done[: len(path)] != path}
        return cast(Schema, fresh(value))

    def _write(self, path: Path, value: Schema, op: Op, what: str) -> None:
        *above, name = path or _refuse_top(what)
        parent = _object_at(self._root(what), tuple(above), what)
        parent["properties"][name] = value
        _include(parent["required"], name)
        self._comparison.spend_on(value)
        self._written[path] = str(type(op).__struct_config__.tag)

    def _change(self, path: Path, value: Schema, op: Op, what: str) -> None:
        """Applies an op in place: to the whole document, or to an existing member that stays."""
        if path:
            self._write(path, value, op, what)
        else:
            self.known = value


def _object_at(schema: Schema, path: Path, what: str) -> dict[str, Any]:
    """Returns the mutable object schema at a path that certainly exists.

    At and above it, keywords that a change below could invalidate are dropped.
    """
    here = _plain_object(schema, what, ())
    if isinstance(schema, dict):
        schema.clear()
        schema.update(here)
        here = schema
    for depth, name in enumerate(path, 1):
        below = here["properties"].get(name, False)
        if below is False:
            raise _unsound(what, f"{show_pointer(path[:depth])} does not exist")
        if name not in here["required"]:
            raise _unsound(what, f"{show_pointer(path[:depth])} is not required")
        here["properties"][name] = _plain_object(below, what, path[:depth])
        here = here["properties"][name]
    return here


def _plain_object(schema: Schema, what: str, path: Path) -> dict[str, Any]:
    if types_of(schema) != {"object"} or not isinstance(schema, dict):
        raise _unsound(what, f"{show_pointer(path) or 'the top'} is not certain to be an object")
    return {
        "type": "object",
        "properties": dict(schema.get("properties", {})),
        "required": list(schema.get("required", ())),
        "additionalProperties": other_members(schema),
    }


def _below(schema: Schema, path: Path) -> Schema:
    """Returns the new schema at a path; everything is allowed if the schema has none."""
    found = _declared(schema, path)
    return True if found is None else found


def _declared(schema: Schema, path: Path) -> Schema | None:
    for name in path:
        members = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(members, dict) or name not in members:
            return None
        schema = members[name]
    return schema


def _resolve_default(op: Op, target: Schema) -> Op:
    if isinstance(op, In):
        return msgspec.structs.replace(op, ops=resolve_defaults(op.ops, _below(target, _tokens(op.path))))
    if isinstance(op, Map):
        below = _below(target, _tokens(op.path))
        items: Any = below.get("items", True) if isinstance(below, dict) else True
        return msgspec.structs.replace(op, ops=resolve_defaults(op.ops, items if isinstance(items, dict) else True))
    if isinstance(op, Add) and op.default is UNSET:
        for schema in (_declared(target, _tokens(op.path)), op.schema):
            if isinstance(schema, dict) and "default" in schema:
                return msgspec.structs.replace(op, default=schema["default"])
        for empty, name in (({}, "object"), ([], "array")):
            if types_of(op.schema) == {name}:
                return msgspec.structs.replace(op, default=empty)
    return op


def _one_of(values: list[Any]) -> Schema:
    """Returns a schema of these scalars.

    Some drafts require distinct values of an `enum`, and 1.0 equals 1 but not `true`.
    """
    return {"enum": list({(isinstance(value, bool), value): value for value in values}.values())} if values else False


def _include(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _tokens(pointer: str) -> Path:
    return parse_pointer(pointer, "pointer")


def _refuse_top(what: str) -> Path:
    raise _unsound(what, "the whole document can neither be moved nor replaced")


def _unsound(what: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what}: {quoted(reason)[1:-1]}", field=what)
