"""The engine benchmark: ours beside what else could answer the same requests, in one run.

A *world* is a model shape, a catalogue and a number format; a *cell* is a batch, a beam width and a prompt length in
it; a *contender* answers a cell's requests. Contenders live in child processes (two vLLM engines cannot share one) and
the parent lets them take turns, so that noise hits all alike.
"""
