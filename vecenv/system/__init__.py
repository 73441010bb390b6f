"""Files, locks, signals and presets: what the operating system offers, made safe."""
