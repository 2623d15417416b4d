"""The agent on a machine: how it joins a cloud and stays in it."""
