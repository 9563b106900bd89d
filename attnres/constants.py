"""Numbers that every part of the model must agree on."""

NORM_EPSILON = 1e-8
"""One epsilon for every norm. A read that averages n sources shrinks its result n-fold; with 1e-5 and
small embeddings the norm after it would no longer remove that scale (24 % off in gradients)."""
