"""The machine: the only reader of real time, real randomness and the process's own surroundings."""
