"""Links between members of the continuum: kept TLS connections on which calls of functions are passed on.

Carries `skerry.functions.continuum.member_api` from one process to another. See docs/continuum.md.
"""
