"""What the commands share: which server, how to print, how to fail, and the words people use for amounts."""
