"""Steps, texts, paths and turns per second."""
