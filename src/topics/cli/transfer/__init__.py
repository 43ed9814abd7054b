"""`topics export` and `topics import`: a topic to files and back."""
