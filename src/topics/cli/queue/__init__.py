"""`topics queue`: commands about jobs."""
