"""The search process: its messages, its queries and their order."""
