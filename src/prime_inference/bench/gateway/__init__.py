"""What the gateway costs beside its peers: `make bench-gateway`.

Load generator and upstream share one core, the thing under test has another to itself, and
rounds alternate, so that a ratio is taken from neighbours in time. `subjects` says how
each thing under test is started, `campaign` what is measured in which order, `results`
how the numbers are put together.
"""
