"""The market for the people of this cloud: peers, what is bought of them, and what is sold."""
