"""The name server of a node's containers: names of this cloud, and others through the machine's resolvers."""
