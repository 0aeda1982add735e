"""Calls that wait at the providers' batch endpoints: submitted once, collected by a later process.

How a request is put into a provider's own form is not here: that is in `providers/http/`.
"""
