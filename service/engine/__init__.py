"""Engines: what turns a prompt into the best existing SIDs. vLLM in production, plain torch as the reference."""
