"""Parts of `official_bert.demo`: folder and scores, text, baselines, blanks."""
