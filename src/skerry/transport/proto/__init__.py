"""The .proto sources, and the stubs that `scripts/protos.py` makes of them.

Sources are compiled by their path from `src`, such as `skerry/transport/proto/identity.proto`: the descriptor
pool knows files by that name, so two contracts may use the same package or none without meeting.
"""
