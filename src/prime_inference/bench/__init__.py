"""Measurements of the running product."""
