"""Whether codes opened on a running engine find, and help, items of a kind that no training saw."""
