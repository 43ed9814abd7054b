"""Index files (also known as companions): columns of sealed entries in memory-mapped files."""
