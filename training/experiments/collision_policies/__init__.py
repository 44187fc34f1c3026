"""Which SID a posted item gets when its nearest is taken: policies, and what each is worth on held-out items."""
