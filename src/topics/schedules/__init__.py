"""Schedules: jobs and records that the server appends at due times."""
