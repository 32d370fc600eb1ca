"""Checks: one module for each thing that is looked at; each has `CHECKS`.

Called by: catalogue.
"""
