"""Whose slots served a request, as headers, events and bills name it."""

from __future__ import annotations

SERVERLESS = "serverless"
FLEX = "flex"  # the same slots, after everybody else and with the price's batch discount
RESERVED = "reserved:"  # the pool of a reservation; its id follows
