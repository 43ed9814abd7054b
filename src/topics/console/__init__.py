"""The console: a web page for people, of files that this package brings along.

The page uses the public API alone, so the server knows nothing of it but its files; README.md says how they are built.
"""
