"""The bytes on the network: pure functions between protocol messages and values."""
