"""The online program: loads a servable checkpoint, decodes items that exist, keeps histories and a live catalogue."""
