"""Whether everything that one schema allows is allowed by another: the half of a lens's proof that looks at schemas.

The answer is sound and not complete: «yes» is always true, «no» may mean that nothing here can show it. For every
keyword of the wider schema that asserts something, the narrower one has to imply it: by its own keyword, by the values
it is limited to, which are then tried one by one, or by saying literally the same.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import jsonschema_rs

from topics.core.errors import InvalidRequestError
from topics.schema.documents import same
from topics.schema.jsonschemas import DRAFT_4, compile_schema, members_in
from topics.schema.limits import MAX_PROOF_STEPS

Schema = dict[str, Any] | bool
Path = tuple[str, ...]

_ABSENT: Final = object()
"""A keyword that is not there. None will not do: `const` may be null."""

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
"""Keywords that mean something only together with their neighbours: they say the same when all of them are the same."""

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
"""Every keyword of any draft that asserts something, with the types it speaks of. All other words are annotations."""


def types_of(schema: Schema) -> frozenset[str]:
    """The types that a schema's `type` leaves possible."""
    if isinstance(schema, bool):
        return TYPES if schema else frozenset()
    given = schema.get("type")
    if given is None:
        return TYPES
    return frozenset([given] if isinstance(given, str) else given)


class Gap(Exception):
    """A place where the one schema allows something that the other may not."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Comparison:
    """One proof's comparisons, within its budget of steps. Both schemas are of the same draft."""

    def __init__(self, draft: str) -> None:
        self._draft = draft
        self._steps = 0

    def require(self, narrow: Schema, wide: Schema, path: Path = ()) -> None:
        """Returns when all that `narrow` allows is allowed by `wide`, raises `Gap` when that is not shown."""
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
        """All values that a schema allows, when it names them; None when it does not."""
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
        """A validator, paid for: many large ones would make a short proof a long one."""
        self._spend(members_in(schema))
        return compile_schema(schema, self._draft)

    def spend_on(self, schema: Schema) -> None:
        """Pays for a schema that has grown: an op that copies may double it."""
        self._spend(members_in(schema))

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_PROOF_STEPS:
            raise InvalidRequestError("the schemas are too complex to prove a lens between them", max=MAX_PROOF_STEPS)

    def _by_branches(self, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> bool:
        for word in ("anyOf", "oneOf"):
            if word in narrow and all(self.is_within(branch, wide, path) for branch in narrow[word]):
                return True
        return any(self.is_within(branch, wide, path) for branch in narrow.get("allOf", ()))

    def _require_word(self, word: str, narrow: dict[str, Any], wide: dict[str, Any], path: Path) -> None:
        together = _TOGETHER.get(word, (word,))
        # What is unevaluated depends on everything else in the schema, so that the same word may mean another thing.
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
    """What a member may be that `properties` does not name. A pattern may say more; nothing here relies on it."""
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
    """`minimum` and its like. In draft 4 the strict form is a flag; then only the same words are accepted."""

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
