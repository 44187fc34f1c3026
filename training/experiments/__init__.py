"""Experiments that say what each part of training brings: arms of one recipe, over seeds, compared in pairs.

A folder per experiment holds `experiment.toml` and, under `results/`, small tables and plots with the command that made
them.
"""
