"""How other servers' parsers read the texts that broken tool calls were reported for.

`__main__` writes the cases and the report; `vllm_parsers` runs in an environment that has vLLM
and nothing of ours.
"""
