"""Tests of what a user installs and starts, and of the shape of the code."""
