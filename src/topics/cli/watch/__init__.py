"""`topics top` and `topics bench`: how a server does."""
