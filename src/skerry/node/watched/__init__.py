"""Groups of processes without cgroups: which processes a cell has, and limits by looking at them."""
