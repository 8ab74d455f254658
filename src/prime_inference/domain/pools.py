"""Whose slots served a request, as headers, events and bills name it."""

from __future__ import annotations

from typing import Literal

SERVERLESS = "serverless"
FLEX = "flex"  # the same slots, after everybody else and with the price's batch discount
RESERVED = "reserved:"  # the pool of a reservation; its id follows

Over = Literal["", "slots", "tokens_per_second", "late"]
"""What of its reservations a request found used up; `late`: its slots were lent and did not come
back in time; empty: nothing."""
