"""A Dynamo worker around the local engine: tokens in, tokens out (docs/datacenter.md).

Runs in an environment that has Dynamo: `python -m prime_inference.engines.dynamo`.
"""
