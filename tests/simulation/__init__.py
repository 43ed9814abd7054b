"""A whole server in one process: real engine, real API of both protocols, on a disk, a clock and a network that a seed
moves. Everything happens in one thread and in one order, so a seed that finds something finds it again."""
