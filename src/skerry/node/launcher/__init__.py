"""The agent's side of the launcher, which forks the inits of cells; `child` contains the processes."""
