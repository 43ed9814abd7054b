"""Conditional appends are refused exactly when the topic, with everything in flight, is not as they expect it."""

from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.property.effort import effort
from tests.unit.conftest import Answers, batch_of, checkpoint, committers, flush, killed, open_engine, topic, values
from topics.engine.conditional_append import fence_of
from topics.engine.results import AppendResult
from topics.model.errors import FenceMismatchError, HeadMismatchError, TopicsError
from topics.testing import FakeDisk

TOKENS = st.sampled_from([None, "", "a", "b"])


class Ask(NamedTuple):
    records: int
    behind: int | None
    """The difference between the expected head and the true one; None expects none."""
    fence: str | None
    new_fence: str | None
    key: str | None


ASKS = st.builds(
    Ask, st.integers(1, 3), st.sampled_from([None, None, 0, 0, 1, -1]), TOKENS, TOKENS,
    st.sampled_from([None, None, "k", "l"]),
)  # fmt: skip
STEPS = st.lists(st.one_of(ASKS, st.sampled_from(["tick", "kill", "checkpoint"])), max_size=30)


@effort(400)
@given(STEPS)
def test_conditions_see_everything_before_them_and_nothing_else(steps: list[Ask | str]) -> None:
    disk = FakeDisk()
    engine = open_engine(disk)
    head, fence, keys, stored = 0, "", dict[str, tuple[int, int]](), list[str]()

    def gather() -> None:
        for committer in committers(engine):
            committer.hold = committer.coalesces = True

    gather()
    for number, step in enumerate(steps):
        if isinstance(step, str):
            flush(engine)
            if step == "checkpoint":
                checkpoint(engine)
            elif step == "kill":
                disk = killed(disk)
                engine = open_engine(disk)
            gather()
            continue
        payloads = [f"{number}-{place}" for place in range(step.records)]
        expected = None if step.behind is None else max(head - step.behind, 0)
        batch = msgspec.structs.replace(
            batch_of(*payloads, key=step.key), expected_head_seq=expected, fence=step.fence, new_fence=step.new_fence
        )
        answers: Answers = []
        try:
            engine.append("t", batch, answers.append)
        except TopicsError as error:
            answers.append(error)
        refused: type[TopicsError] | None = None
        if step.key in keys:
            pass
        elif step.fence is not None and step.fence != fence:
            refused = FenceMismatchError
        elif expected is not None and expected != head:
            refused = HeadMismatchError
        else:
            if step.key is not None:
                keys[step.key] = head + 1, head + step.records
            head += step.records
            fence = fence if step.new_fence is None else step.new_fence
            stored += payloads
        if refused is not None:
            (answer,) = answers
            assert isinstance(answer, refused), answer
            assert answer.detail.get("head_seq", head) == head
            assert answer.detail.get("fence", fence) == fence
        else:
            assert not answers or isinstance(answers[0], AppendResult)
    flush(engine)
    if stored:
        assert values(engine, "t") == stored
        assert (topic(engine, "t").head, fence_of(topic(engine, "t"))) == (head, fence)
