"""A running process: its data folder, its listeners, its signals, and the roles it is made of."""
