"""Prime Inference: an open inference cloud behind one OpenAI-compatible endpoint."""

__version__ = "0.1.0"
