"""What runs in the launcher and, forked from it, in the init of every cell and just before an executable.

Standard library only, and little of it: each fork copies the tables of every page that was ever touched.
`skerry.node.launcher.client` is the agent's end.
"""
