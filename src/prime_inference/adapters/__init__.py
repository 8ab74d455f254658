"""Implementations of the ports; the only importers of drivers."""
