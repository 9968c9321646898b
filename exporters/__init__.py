"""Where spans go: one small interface, and what implements it."""
