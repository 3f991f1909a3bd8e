"""holdfast: memory in recurrent sequence models, measured, kept stable and built to last."""
