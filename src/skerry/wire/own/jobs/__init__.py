"""Jobs and schedules over HTTP."""
