"""Web console: static files that the server delivers.

The page uses only the public API; README.md describes how its files are built.
"""
