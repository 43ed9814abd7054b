"""Touches: who waits for a row, a query or a table of a state-protocol stream is woken when it changes."""
