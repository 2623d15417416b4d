"""Schedules: jobs and calls of functions at the times of cron expressions."""
