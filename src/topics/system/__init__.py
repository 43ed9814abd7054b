"""System access: real time, randomness, process and memory settings. No other package reads them."""
