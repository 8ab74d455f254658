"""The fault scorecard: what a client of the gateway sees while things behind it break.

Real gateway processes, engines and networks that misbehave on demand, a real Redis, real
sockets. `published` has the scenarios of Failover Bench (2026-09-12) with its limits, the
other modules have ours; `python -m prime_inference.bench.faults` runs them (`make faults`).
"""
