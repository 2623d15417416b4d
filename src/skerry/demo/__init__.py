"""The demo: a cloud, three edge sites and a neighbour cloud on one machine, shown step by step."""
