"""What developers run, and nothing that is shipped."""
