"""The model library: decoder, residual streams and their accounting, on plain torch.

``attnres.errors``, ``attnres.files`` and ``attnres.registry`` import no torch: every package of the
project, ``analysis`` included, may use them. This file imports nothing, to keep it so.
"""
