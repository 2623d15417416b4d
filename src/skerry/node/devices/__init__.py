"""Devices of this machine for containers, as the files of the Container Device Interface describe them."""
