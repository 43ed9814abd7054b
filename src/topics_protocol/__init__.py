"""Types and constants of the protocol that server and client share. Imports neither of them."""

__version__ = "0.1.0"
"""The version of topics: server and client are released together."""
