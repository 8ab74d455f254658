"""Breakers, leases, budgets: pure state machines, and the task that connects them to a store."""
