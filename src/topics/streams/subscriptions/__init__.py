"""Subscriptions: somebody is woken when streams have something new, by a webhook or through a stream of wake-ups."""

from topics.streams.subscriptions.model import Subscription, SubscriptionRequest
from topics.streams.subscriptions.service import Acks, Granted, SubscriptionLimits, Subscriptions

__all__ = ["Acks", "Granted", "Subscription", "SubscriptionLimits", "SubscriptionRequest", "Subscriptions"]
