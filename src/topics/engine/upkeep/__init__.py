"""What happens by and by: tails become segments, the log becomes snapshots, old segments move, guests are told."""
