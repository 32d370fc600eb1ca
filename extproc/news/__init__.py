"""News: what replicas of kvring tell each other, so that they choose as one.

    journal ── view.flush ──> bytes ── a store, or a socket ──> view.hear ──> router.learn

Called by: share (carries the bytes), simulation.
"""
