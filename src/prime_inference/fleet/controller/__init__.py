"""Makes a fleet what it shall be, and keeps gateways told (docs/datacenter.md)."""
