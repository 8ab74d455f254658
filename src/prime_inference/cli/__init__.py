"""The `prime` command."""
