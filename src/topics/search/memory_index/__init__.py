"""The memory index: columns of recent entries, filled as entries arrive."""
