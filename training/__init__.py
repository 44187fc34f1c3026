"""The offline program: a catalogue with text and its interactions become a servable checkpoint."""
