"""Whose slots served a request, as headers, events and bills name it."""

from __future__ import annotations

SERVERLESS = "serverless"
RESERVED = "reserved:"  # the pool of a reservation; its id follows
