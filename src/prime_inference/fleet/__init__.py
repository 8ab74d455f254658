"""Datacenters: what is deployed where, started and watched (docs/datacenter.md)."""
