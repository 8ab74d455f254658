"""The words of the product as plain values: no I/O, imports nothing of ours."""
