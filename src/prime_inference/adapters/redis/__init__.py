"""Coordination in Redis or Valkey."""
