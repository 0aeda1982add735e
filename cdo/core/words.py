"""Lists English words that say nothing about a subject. Pure.

The rankers of files, of skills and of past sessions ignore them. Each ranker adds words that say nothing in its own
texts.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the words of a text that lists them."""
    return frozenset(text.split())


FUNCTION_WORDS = words("""
        a about above after again all also an and any are as at be because been before being below between both but
        by can could did do does doing done down during each every few for from further get got had has have having
        her here hers him his how if in into is it its itself just many may might more most must no not now of off
        on once one only or other our out over own same shall she should so some such than that the their them then
        there these they this those through to too under until up us use used using very was way we were what when
        where whether which while who whom whose why will with would yes you your
""")
