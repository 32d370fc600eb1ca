"""Share: carries what replicas tell each other: through a store, or between workers of one machine.

Called by: app.
"""
