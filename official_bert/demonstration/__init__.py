"""Parts of `official_bert.demo`: its folder and scores, its text, its baselines, its blanks."""
