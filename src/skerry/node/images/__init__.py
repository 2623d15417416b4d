"""Images on a node: what a reference means, where they come from, how they are kept and collected."""
