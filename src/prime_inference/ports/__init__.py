"""Protocols between the product and the outside; adapters implement them."""
