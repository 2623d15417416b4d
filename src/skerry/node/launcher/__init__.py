"""The agent's side of the launcher, which forks the inits of cells; the processes themselves are in
`child`."""
