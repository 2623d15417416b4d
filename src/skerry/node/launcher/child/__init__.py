"""Code of the launcher and, forked from it, of every cell's init and of processes before exec.

Standard library only, and little of it: each fork copies the page tables of everything that was touched.
`skerry.node.launcher.client` is the agent's end.
"""
