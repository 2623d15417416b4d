"""Services: so many copies kept ready, updated without a gap, scaled and reverted."""
