"""One module for each model format; each holds one `FORMAT`."""
