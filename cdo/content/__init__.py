"""Presets, prompts, roles and skills: found, checked against their schemas, and rendered.

The files themselves lie in the top-level folders presets, templates, engine, dispatch, domains, modes and skills (in
an installed package: cdo/data). It imports core, formats and security.
"""
