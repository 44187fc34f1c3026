"""Pre-training of the prefix memory before it is attached to a language model (arXiv 2606.00324)."""
