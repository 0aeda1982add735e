"""A mission as files that people read: its pages, deliverables, FINAL.md and certificate. Pure."""
