"""Questions that the papers leave open, answered with criteria that were fixed before the runs."""
