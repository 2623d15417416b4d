"""The node: its agent, cells, containers, images, network, logs and function workers."""
