"""Workers of functions: the programs in them, the words they are spoken to in, and how they come to be."""
