"""The web console: pages for people, rendered on the server, at `/console` of a server's HTTP port."""
