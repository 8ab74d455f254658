"""Prices, usage events, and what is done with them: pure but for a few loops."""
