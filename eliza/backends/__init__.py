"""Runtimes that compute logits."""
