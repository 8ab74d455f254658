"""Anthropic's Messages API as a translation onto chat completions (docs/dialects.md).

Source of the contract: Anthropic's API reference for messages, their streaming events
and errors.
"""
