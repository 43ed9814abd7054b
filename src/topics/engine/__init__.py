"""The engine: topics and everything that changes or reads them. Decide, log, apply."""
