"""Applies the envoy's messages, and refuses those that contradict the facts. Pure.

What a message claims is found by words, in English; the numbers that a reply states are compared in any language.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from cdo.cabal.model.entities import EnvoyMessage, MissionEvent, MissionStep
from cdo.cabal.model.events import identifiers, recorded
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import PresentReply
from cdo.cabal.rules import acceptance
from cdo.cabal.rules.feedback import Judged
from cdo.core.formatting import pluralise
from cdo.core.mission_names import CHAIR, ENVOY

STANDING = "standing"  # the kind of the event that says how things stand, by rules since 5
# Words that say that something is finished: the message must cite an acceptance, or the end of the mission.
FINISHED = r"accepted|finished|completed?|done|delivered|finali[sz]ed"
# Words for things that cdo never does, whatever the team made.
OUTSIDE = r"shipped|deployed|released|launched|rolled out|(?:to|in|into) production|(?:is|are|went|goes) live"
ONLINE = r"(?:is|are|went|goes)(?: now)? (?:live|online)"  # likewise, by rules since 4
# Words of a verdict: the message must cite one, an acceptance, or the end of the mission; by rules since 4.
APPROVED = r"(?:is|are|was|were|been|got)(?: now| all| fully)? approved"
# Words that make a claim one about the whole mission.
WHOLE = r"everything|all|whole|entire|every|each|the (?:mission|project|app|application|product|work)"
# Words before a claim that make it none: it is denied, wished, asked for or still to come.
HEDGE = (
    r"not|no|none|nothing|nobody|neither|nor|never|cannot|without|yet|un\w+|\w+n['’]t|will|would|shall|should|can|could"
    r"|may|might|must|to be|to get|once|until|till|if|when|whether|before|how|where|why|who|what|nearly|almost|half"
    r"|partly|waits?|waiting|awaits?|needs?|ready for|next|let us|let['’]s"
)
_EXEMPT = re.compile(r"definitions? of done", re.IGNORECASE)
_CLAUSE = re.compile(r"[.!?;:,()–—]+|\s-\s|\b(?:and|but|while|though|although|so|because)\b", re.IGNORECASE)


def _word(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{expression})(?![\w-])", re.IGNORECASE)


_FINISHED, _OUTSIDE, _WHOLE, _HEDGE = map(_word, (FINISHED, OUTSIDE, WHOLE, HEDGE))
_ONLINE, _APPROVED = map(_word, (ONLINE, APPROVED))


def presented(state: MissionState, reply: PresentReply, round_events: Collection[str]) -> Judged:
    """Apply the envoy's messages, each in the voice of the chair or an operative and citing events of this round.

    A message may call something finished only if it cites an acceptance, and everything only if all is accepted.
    Words alone do not show every boast, in every language; so an event before the messages says how things stand.
    """
    speakers = (CHAIR, *state.team)
    problems, counts = _miscounted(state, reply), _counts(state)
    after = state
    if state.rules >= 5 and reply.messages:
        after = recorded(after, MissionStep.PRESENT, STANDING, "code", _standing(state, counts))
    for place, item in enumerate(reply.messages, 1):
        if item.as_agent not in speakers:
            problems.append(f"Message {place} speaks as {item.as_agent}; who may speak: {', '.join(speakers)}.")
        if named := identifiers(state, item.content):
            problems.append(f"Message {place} names {', '.join(named)}: say what it is in plain words instead.")
        if strange := [id for id in item.events if id not in round_events]:
            there = listed(sorted(round_events, key=lambda id: (len(id), id)))
            problems.append(f"Message {place} rests on {', '.join(strange)}; the events of this round are {there}.")
        problems += (f"Message {place} {why}." for why in _untrue(state, counts, item.content, item.events))
        made = EnvoyMessage(state.round, item.as_agent, item.content, tuple(dict.fromkeys(item.events)))
        after = replace(after, messages=(*after.messages, made))
        after = recorded(after, MissionStep.PRESENT, "message", ENVOY, item.content)
    return (state, tuple(problems)) if problems else (after, ())


def _counts(state: MissionState) -> tuple[int, int]:
    """Return how many products are accepted, and of how many."""
    live = state.live()
    return sum(acceptance.holds(state, item.id) for item in live), len(live)


def _standing(state: MissionState, counts: tuple[int, int]) -> str:
    """Return how the mission stands, by code: what is accepted, and what blocks."""
    blocking = sum(item.blocking for item in state.collabs.values())
    notes = f", {pluralise(blocking, 'note')} {'blocks' if blocking == 1 else 'block'}" if blocking else ""
    return f"{counts[0]} of {pluralise(counts[1], 'product')} accepted{notes}"


def _miscounted(state: MissionState, reply: PresentReply) -> list[str]:
    accepted, live = _counts(state)
    stated = (accepted if reply.accepted is None else reply.accepted, live if reply.of is None else reply.of)
    if stated == (accepted, live):
        return []
    return [f"The reply states {stated[0]} of {stated[1]} products accepted; in fact it is {accepted} of {live}."]


def tellable(state: MissionState, event: MissionEvent) -> bool:
    """True if the text of an event may be told to the person as it is, in a message that cites only this event."""
    return not identifiers(state, event.text) and not any(_untrue(state, _counts(state), event.text, (event.id,)))


def _untrue(state: MissionState, counts: tuple[int, int], text: str, events: Collection[str]) -> Iterator[str]:
    """Yield why a message contradicts the facts, as clauses. `counts` are the products accepted, and all."""
    accepted, live = counts
    done = live > 0 and accepted == live
    found = [event for event in state.events if event.id in events]
    cited, later = {event.kind for event in found}, state.rules >= 4
    approved = any(event.kind == "inspection" and event.text.endswith(": approved") for event in found)
    proved = "accepted" in cited or ("halt" in cited and state.halt == "done")
    for clause in _clauses(state, text):
        if word := _claimed(_OUTSIDE, clause) or (later and _claimed(_ONLINE, clause)):
            yield f"says “{word}”, and the team ships, deploys or releases nothing: it makes files"
        if later and not (proved or approved) and (word := _claimed(_APPROVED, clause)):
            yield f"says “{word}” and cites no verdict of that kind: cite one, or say what did happen"
        if not (word := _claimed(_FINISHED, clause)):
            continue
        if _WHOLE.search(clause) and not done:
            yield f"says “{word}” of the whole, and {accepted} of {live} products are accepted"
        elif not proved:
            yield f"says “{word}” and cites no acceptance: cite one, or say what did happen"


def _clauses(state: MissionState, text: str) -> Iterator[str]:
    """Yield the parts of a text between which a denial does not carry over, without names of products."""
    for name in sorted((item.name for item in state.products.values()), key=len, reverse=True):
        text = re.sub(re.escape(name), "it", text, flags=re.IGNORECASE)
    yield from _CLAUSE.split(_EXEMPT.sub("aims", text))


def _claimed(words: re.Pattern[str], clause: str) -> str:
    """Return the first of these words that a clause claims, "" if there is none or something before denies it."""
    match = words.search(clause)
    return match[0] if match and not _HEDGE.search(clause[: match.start()]) else ""
