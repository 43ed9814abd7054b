"""Tools for operators: backup, verification and repair of a data folder."""
