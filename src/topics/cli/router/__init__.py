"""`topics router`: commands about routers."""
