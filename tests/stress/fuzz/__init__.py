"""What comes from outside, and what has to hold for it; for Hypothesis and for atheris."""
