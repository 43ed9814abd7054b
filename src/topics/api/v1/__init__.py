"""Durable Streams over HTTP: parse, call, render."""
