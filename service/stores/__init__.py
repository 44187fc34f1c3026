"""Where histories and the item log live: Redis in production, memory in tests."""
