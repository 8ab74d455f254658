"""What a compressed KV cache costs in accuracy, from synthetic rows to served models."""
