"""`make soak`: campaigns that try to make Skerry lose, double or leave something."""
