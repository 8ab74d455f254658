"""OpenAI's Responses API as a translation onto chat completions (docs/dialects.md).

Source of the contract: OpenAI's API reference for responses and its streaming events.
"""
