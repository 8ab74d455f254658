"""What generates tokens on this machine: the local engine and the mock engine."""
