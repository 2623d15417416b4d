"""The child process that unpacks one layer: read, decompress, parse, apply.

Standard library and the two decompressors only: the process runs for one layer. It is confined before the
first byte of the layer is decompressed (`confinement`); its arguments are its task, and its output is JSON.
`skerry.node.layers.unpacker_client` is the agent's end.
"""
