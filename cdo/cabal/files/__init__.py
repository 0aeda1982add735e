"""Renders a mission as files for people (pages, deliverables, FINAL.md, certificate) and reads them back. Pure."""
