"""Saved state: whole or absent, and tied to what it was made with."""
