"""Starts a fleet on one machine and keeps it running (docs/datacenter.md, "The launcher")."""
