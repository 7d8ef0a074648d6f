"""The parts of `official_bert.demo`: its text, its folder, its baselines, its scores."""
