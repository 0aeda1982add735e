"""Decides the course of runs: programs are pure generators that yield steps and receive checked replies.

A program cannot read a file, ask for the time or print: it only decides. It knows neither the runner nor any
provider. It imports session and the packages that session imports; `registry` also imports cabal.
"""
