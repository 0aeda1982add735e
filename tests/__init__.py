"""Tests of cdo, and the HTTP provider they talk to."""
