"""Files that may be damaged: looking at them without believing them, and putting others into their place."""
