"""Load on a running service and what it did under it. Speed belongs here, never in tests."""
