"""The public data plane: authenticate, rebuild, choose, attempt, relay, settle."""
