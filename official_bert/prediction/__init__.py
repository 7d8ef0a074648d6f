"""Trained models in use: `official_bert.load` and the predictors that it returns."""
