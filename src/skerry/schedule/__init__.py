"""Placement of instances on nodes, with the reason for each node that was rejected: pure, in memory.

`scheduler` is the interface; `requests` and `results` are what goes in and comes out; `explanations` puts
results in words.
Nothing here does I/O or uses a clock or randomness: the same changes give the same answers.
"""
