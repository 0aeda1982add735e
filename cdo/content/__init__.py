"""Finds presets, prompts, roles and skills, checks them against their schemas, and renders them.

The files themselves lie in the top-level folders presets, templates, engine, dispatch, domains, modes and skills (in
an installed package: cdo/data). It imports core, formats and security.
"""
