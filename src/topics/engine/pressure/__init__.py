"""How hard the server is pressed, who is served first, and who has to wait."""
