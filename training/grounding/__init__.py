"""Grounded token initialisation (GTI, arXiv 2604.02324): where new SID tokens start in the language model's space.

One file per objective, one interface; `registry` chooses by name.
"""
