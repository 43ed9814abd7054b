"""The search process: its messages, its work, and the supervision of it."""
