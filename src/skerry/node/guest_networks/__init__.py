"""Networks of guests: a leased cell that takes part in the mesh of its buyer has a network of its own."""
