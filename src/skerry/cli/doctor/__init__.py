"""`skerry doctor`: facts about this machine and its server, and what is wrong with them.

`machine_facts` and `server_facts` gather `facts`, at the same time (`gathering`); `machine_checks` and
`server_checks` turn them into `findings` without any I/O, and `diagnosis` does both.
"""
