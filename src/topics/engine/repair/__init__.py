"""Looking for damage in a data folder that no server has open, and mending it."""
