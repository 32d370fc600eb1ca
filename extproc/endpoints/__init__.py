"""Endpoint sources: where pools come from, and what is known of each endpoint's health. One source a file.

Called by: app.
"""
