"""How an operation on a subscription is refused. The codes are those that clients of the protocol know."""

from topics.core.errors import InvalidRequestError, TopicsError, TopicStateError, quoted


class SubscriptionNotFoundError(TopicStateError):
    code = "SUBSCRIPTION_NOT_FOUND"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"there is no subscription {quoted(subscription_id)}")


class SubscriptionConflictError(TopicStateError):
    """It exists and is another one."""

    code = "SUBSCRIPTION_CONFLICT"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"subscription {quoted(subscription_id)} exists with other settings")


class SubscriptionTakenError(TopicsError):
    """It exists and is not theirs who ask."""

    code = "forbidden"

    def __init__(self, subscription_id: str) -> None:
        super().__init__(f"the id {quoted(subscription_id)} is not free", name=subscription_id)


class WebhookRejectedError(InvalidRequestError):
    """An address that the server will not call."""

    code = "WEBHOOK_URL_REJECTED"


class FencedError(TopicStateError):
    """The wake-up is over, or another one has taken its place."""

    code = "FENCED"

    def __init__(self, generation: int) -> None:
        super().__init__("this wake-up is over; a later one may have taken its place", current_generation=generation)


class AlreadyClaimedError(TopicStateError):
    code = "ALREADY_CLAIMED"

    def __init__(self, holder: str, generation: int) -> None:
        super().__init__("another worker holds the lease", current_holder=holder, generation=generation)


class NoPendingWorkError(TopicStateError):
    code = "NO_PENDING_WORK"

    def __init__(self) -> None:
        super().__init__("none of the subscription's streams has anything new")


class BadTokenError(TopicsError):
    code = "INVALID_TOKEN"

    def __init__(self) -> None:
        super().__init__("the bearer token does not belong to this subscription")
