"""Tool calls: from the caller's schema to a grammar, and from the model's text back to a call.

The parts and how they fit are in docs/tool-calls.md.
"""
