"""Which deployment serves a request."""
