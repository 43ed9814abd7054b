"""Queries: grammar, planning, matching, scoring, sorting and aggregation. Pure functions."""
