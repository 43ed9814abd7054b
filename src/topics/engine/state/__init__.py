"""What a topic holds, and the one place where logged changes become state."""
