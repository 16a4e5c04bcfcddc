"""Proof by comparison: text with drafting equals text without, token for token."""
