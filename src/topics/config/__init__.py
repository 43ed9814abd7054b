"""The settings: every value an operator can choose, read from flags and the environment."""
