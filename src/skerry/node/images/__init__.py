"""Images on a node: what a reference means, where images come from, how they are kept, shared and collected."""
