"""Developer tools; none of them is part of a release."""
