"""From outcomes to a scorer's model: the fit, its figures, and whether it may take over."""
