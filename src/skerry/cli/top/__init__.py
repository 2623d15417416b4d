"""`skerry top`: what runs, live.

`snapshots` reads the server, `tables` turns a snapshot into rows, `state` changes what is shown by keys,
`drawing` draws it, all of that without a terminal; `screen` connects them with one.
"""
