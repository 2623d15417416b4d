"""What runs in the child process that unpacks one layer: read, decompress, parse, apply.

Standard library and the two decompressors only, and little of it: the process lives for one layer. It is
confined before the first byte of the layer is decompressed (`confinement`); it is told what to do by its
command line and answers in JSON. `skerry.node.layers.unpacker_client` is the agent's end.
"""
