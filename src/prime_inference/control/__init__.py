"""What operators do: the admin API on the control listener."""
