"""Subscriptions: somebody is woken when streams have something new, by a webhook or through a stream of wake-ups."""
