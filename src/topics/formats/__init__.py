"""Bytes on disk and the values they stand for; each file opens with its byte table. Pure."""
