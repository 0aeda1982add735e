"""CABAL: a simulated team that turns one request into reviewed deliverables. Pure but for what `cdo.app` wires in."""
