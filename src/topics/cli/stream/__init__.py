"""`topics stream`: commands about streams, which speak /v1."""
