"""Forwarding of logs from rings on disk to files, syslog and Loki."""
