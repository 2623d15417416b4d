"""No domain words: time, ids, tasks, files, TLS, logs and metrics that any room may use."""
