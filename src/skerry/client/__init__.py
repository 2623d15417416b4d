"""Client of servers and nodes, for the command line and other programs; light to import."""
