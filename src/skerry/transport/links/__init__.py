"""Links of this cloud's own processes: nodes with servers, members with members."""
