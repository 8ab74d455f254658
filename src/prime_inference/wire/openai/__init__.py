"""OpenAI's message formats as closed types, and the bounds on them.

Source of the contract: OpenAI's API reference for chat completions, completions,
embeddings and models; extensions are those of vLLM and OpenRouter that agents use.
"""
