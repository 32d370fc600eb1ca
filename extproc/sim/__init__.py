"""Simulation: an engine model, simulated replicas that speak HTTP, and the load they are shown with.

`kv_cache`, `performance`, `tally` and `engine` are pure: time is an argument, so they run under a virtual
clock as well as inside `replica`, the HTTP server. Only the command line imports this package, lazily.
"""
