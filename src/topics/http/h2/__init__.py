"""HTTP/2 connections: the same exchanges as HTTP/1.1, one per stream. Imported when the first client uses it."""
