"""Subscriptions (also known as: consumer groups): new entries wake workers, by webhook or through a wake stream."""
