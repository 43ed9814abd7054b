"""Commands about topics and their records."""
