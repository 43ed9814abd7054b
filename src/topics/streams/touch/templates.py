"""The templates that somebody uses: for these alone changes are looked at closely."""

from collections import deque

from topics.schema.profiles.state_protocol import TouchTemplates
from topics.schema.touches import Template

_MINUTE_MS = 60_000


class Active:
    __slots__ = ("since", "template", "ttl_ms", "used_ms")

    def __init__(self, template: Template, since: int, ttl_ms: int, used_ms: int) -> None:
        self.template = template
        self.since = since
        """The generation behind which changes are looked at for it."""
        self.ttl_ms = ttl_ms
        self.used_ms = used_ms


class ActiveTemplates:
    """Times are those of a clock that does not jump, in milliseconds."""

    def __init__(self, limits: TouchTemplates) -> None:
        self._limits = limits
        self._by_id: dict[str, Active] = {}
        self.by_entity: dict[str, list[Template]] = {}
        self._activations: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._by_id)

    def activate(self, template: Template, since: int, ttl_ms: int | None, now_ms: int) -> str:
        """Begins to use a template, or goes on to; why not, empty where nothing is in the way."""
        known = self._by_id.get(template.id)
        ttl_ms = ttl_ms or self._limits.default_inactivity_ttl_ms
        if known is not None:
            if known.template != template:
                return "another encoding of its fields is active"
            known.used_ms, known.ttl_ms = now_ms, max(known.ttl_ms, ttl_ms)
            return ""
        refusal = self._refusal(template, now_ms)
        if not refusal:
            self._activations.append(now_ms)
            self._by_id[template.id] = Active(template, since, ttl_ms, now_ms)
            self.by_entity.setdefault(template.entity, []).append(template)
        return refusal

    def _refusal(self, template: Template, now_ms: int) -> str:
        limits, activations = self._limits, self._activations
        if len(self._by_id) >= limits.max_active_templates_per_stream:
            return "the stream has as many templates as it may have"
        if len(self.by_entity.get(template.entity, ())) >= limits.max_active_templates_per_entity:
            return "the entity has as many templates as it may have"
        while activations and now_ms - activations[0] >= _MINUTE_MS:
            activations.popleft()
        if limits.activation_rate_limit_per_minute and len(activations) >= limits.activation_rate_limit_per_minute:
            return "too many templates were activated within a minute"
        return ""

    def use(self, template_id: str, now_ms: int) -> Active | None:
        """Somebody waits by a template; None where it is not active."""
        active = self._by_id.get(template_id)
        if active is not None:
            active.used_ms = now_ms
        return active

    def begun(self, template_id: str) -> int:
        """The generation behind which changes are looked at for a template; 0 where that is none."""
        active = self._by_id.get(template_id)
        return active.since if active is not None else 0

    def forget_unused(self, now_ms: int) -> list[Template]:
        """Those that nobody used for as long as they were to be kept; they are active no more."""
        unused = [active.template for active in self._by_id.values() if now_ms - active.used_ms >= active.ttl_ms]
        for template in unused:
            del self._by_id[template.id]
            others = self.by_entity[template.entity]
            others.remove(template)
            if not others:
                del self.by_entity[template.entity]
        return unused
