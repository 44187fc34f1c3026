"""What training and serving share: SIDs, quantiser, prefix memory, trie, beam, prompt and checkpoint.

One implementation each, so that a checkpoint means the same in training, evaluation and serving. Nothing here knows
of HTTP, Redis or vLLM.
"""
