"""Motions and votes: what changes a text, that every seat is counted once, and how seats and minutes are checked."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import InvalidReply, ReplyFormat
from cdo.formats import strict_yaml
from cdo.formats.final_answer import FinalFormat
from cdo.programs.debug.reply_formats import CaseData
from cdo.programs.parliament.minutes import NO_MAJORITY, MinutesFormat, SpeechFormat
from cdo.programs.parliament.motions import House, Item, SpeechData, Tally
from cdo.session.artifact import OWN_KEYS
from tests.support.answers import agent_text, final_text
from tests.unit.formats import test_gbnf

SEATS = [("pragmatist", "A"), ("critic", "B"), ("economist", "C"), ("critic-2", "A"), ("operator", "A")]
NAMES = [name for name, _ in SEATS]


def said(**keys: Any) -> SpeechData:
    return SpeechData.model_validate({"position": "x", "confidence": 0.6, **keys})


def moving(*texts: str) -> SpeechData:
    return said(motions=[{"text": text} for text in texts])


def votes(**cast: str) -> SpeechData:
    return said(ballot=[{"item": item, "vote": vote, "reason": f"because of {item}"} for item, vote in cast.items()])


def table() -> House:
    """M1 of the pragmatist and M2 of the critic, both seconded; A1 of the critic would change M1."""
    house = House().debated(1, [("pragmatist", moving("Split it.")), ("critic", moving("Keep it."))])
    return house.debated(
        2,
        [
            ("critic", said(seconds=["M1"], amendments=[{"motion": "M1", "text": "Split it in May."}])),
            ("economist", said(seconds=["M1", "M2"])),
        ],
    )


def vote(house: House, cast: Sequence[dict[str, str]], majority: float = 0.5) -> House:
    """The house after its seats voted, in their order."""
    speeches = [(name, votes(**own)) for name, own in zip(NAMES, cast, strict=False)]
    return house.voted(3, house.ballot(9), speeches, SEATS, majority)


def problems(form: ReplyFormat, text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidReply) as caught:
        form.parse(text)
    return caught.value.problems


# -- motions and amendments ------------------------------------------------------------------------


def test_motions_get_their_ids_in_the_order_of_the_seats() -> None:
    house = House().debated(1, [("critic", moving("a", "b")), ("economist", moving("c"))])
    assert [(item.id, item.text, item.mover) for item in house.motions] == [
        ("M1", "a", "critic"), ("M2", "b", "critic"), ("M3", "c", "economist"),
    ]  # fmt: skip
    assert house.ballot(9) == ()  # nobody seconded any


def test_the_same_motion_of_two_seats_is_one_that_is_seconded() -> None:
    house = House().debated(1, [("critic", moving("Keep it.")), ("economist", moving("keep  IT"))])
    (motion,) = house.motions
    assert (motion.mover, motion.seconds, motion.stands) == ("critic", ("economist",), True)


def test_a_seat_seconds_once_and_never_its_own_motion() -> None:
    house = House().debated(1, [("critic", moving("Keep it."))])
    house = house.debated(2, [("critic", said(seconds=["M1"])), ("economist", said(seconds=["M1", "M1", "M7"]))])
    house = house.debated(3, [("economist", said(seconds=["M1"]))])
    assert house.motions[0].seconds == ("economist",)


def test_only_the_mover_accepts_an_amendment() -> None:
    house = table()
    for seat in NAMES[1:]:
        assert house.debated(3, [(seat, said(accepts=["A1"]))]) == house
    after = house.debated(3, [("pragmatist", said(accepts=["A1"]))])
    assert after.motions[0].text == "Split it in May."
    assert after.motions[0].changes == ("A1 accepted by pragmatist in turn 3",)
    assert (after.amendments[0].fate, after.pending()) == ("accepted", ())


def test_one_amendment_of_a_motion_is_accepted_in_a_turn() -> None:
    house = table().debated(3, [("economist", said(amendments=[{"motion": "M1", "text": "Split it in June."}]))])
    after = house.debated(4, [("pragmatist", said(accepts=["A2", "A1"]))])
    assert after.motions[0].text == "Split it in June."
    assert [item.fate for item in after.amendments] == ["moved", "accepted"]


def test_what_is_moved_in_a_turn_cannot_be_accepted_in_it() -> None:
    house = House().debated(1, [("pragmatist", moving("Split it."))])
    change = {"motion": "M1", "text": "Split it in May."}
    after = house.debated(2, [("critic", said(amendments=[change])), ("pragmatist", said(accepts=["A1"]))])
    assert after.motions[0].text == "Split it."


def test_an_amendment_must_change_something() -> None:
    house = table()
    for text in ("Split it.", "split  it", "SPLIT IT IN MAY."):
        assert house.debated(3, [("operator", said(amendments=[{"motion": "M1", "text": text}]))]) == house


# -- votes -----------------------------------------------------------------------------------------


def test_the_ballot_holds_what_is_seconded_and_its_amendments() -> None:
    house = table().debated(3, [("operator", moving("Wait."))])
    assert house.ballot(9) == (
        Item("M1", "M1", "Split it."), Item("A1", "M1", "Split it in May."), Item("M2", "M2", "Keep it."),
    )  # fmt: skip
    assert [item.id for item in house.ballot(2)] == ["M1", "A1"]


def test_a_vote_is_counted_by_seat_and_by_vendor() -> None:
    after = vote(table(), [{"M1": "yes"}, {"M1": "no"}, {"M1": "yes"}, {"M1": "yes"}])
    tally = after.tallies[0]
    assert tally.words == "M1 carried: 3 yes / 1 no / 1 absent; 2 of 3 vendors"
    assert tally.named("no") == (("critic", "because of M1"),)
    assert [item.id for item in after.carried] == ["M1"]
    assert after.decisive(after.carried[0]) is tally
    one = Tally(tally.item, 3, tuple((seat, "A", cast, why) for seat, _, cast, why in tally.votes), 0.5)
    assert one.score == "3 yes / 1 no / 1 absent; 1 vendor"


@pytest.mark.parametrize(
    ("cast", "majority", "carried"),
    [
        (["yes", "yes", "yes", "no", "no"], 0.5, True),
        (["yes", "yes", "no", "no"], 0.5, False),
        (["yes", "abstain", "abstain"], 0.5, True),
        (["yes", "yes"], 0.5, False),  # fewer than half of the seats are present
        (["abstain", "abstain", "abstain"], 0.5, False),
        (["yes", "yes", "yes", "no", "no"], 0.66, False),
        (["yes", "yes", "yes", "yes", "no"], 0.66, True),
        ([], 0.5, False),
    ],
)
def test_a_majority_of_votes_cast_with_half_of_the_seats_present(
    cast: list[str], majority: float, carried: bool
) -> None:
    after = vote(table(), [{"M1": word, "A1": "no", "M2": "no"} for word in cast], majority)
    assert after.tallies[0].carried is carried
    assert after.motions[0].fate == ("carried" if carried else "rejected")


def test_a_vote_changes_a_text_where_the_amendment_has_more_for_it() -> None:
    more = vote(table(), [{"M1": "yes", "A1": "yes"}] * 3 + [{"M1": "no", "A1": "yes"}])
    assert [item.text for item in more.carried] == ["Split it in May."]
    assert more.carried[0].changes == ("A1 carried in turn 3: 4 yes / 0 no / 1 absent; 3 of 3 vendors",)
    assert (more.amendments[0].fate, more.decisive(more.carried[0]).item.id) == ("carried", "A1")
    level = vote(table(), [{"M1": "yes", "A1": "yes"}] * 3)
    assert [item.text for item in level.carried] == ["Split it."]
    assert level.amendments[0].fate == "lapsed"
    alone = vote(table(), [{"M1": "no", "A1": "yes"}] * 3)
    assert [item.text for item in alone.carried] == ["Split it in May."]


def test_what_is_rejected_comes_back_with_another_text_only() -> None:
    lost = vote(table(), [{"M1": "no", "A1": "no", "M2": "no"}] * 5)
    assert lost.ballot(9) == () and lost.carried == ()
    again = lost.debated(4, [("economist", said(seconds=["M1"])), ("critic", moving("Split it."))])
    assert again.ballot(9) == ()
    changed = again.debated(5, [("critic", said(amendments=[{"motion": "M1", "text": "Split half."}]))])
    assert changed.ballot(9) == ()
    accepted = changed.debated(6, [("pragmatist", said(accepts=["A2"]))])
    assert accepted.ballot(9) == (Item("M1", "M1", "Split half."),)


def test_a_second_vote_of_a_seat_does_not_count() -> None:
    twice = said(ballot=[{"item": "M1", "vote": word, "reason": word} for word in ("no", "yes", "yes")])
    after = table().voted(3, table().ballot(9), [("critic", twice), ("critic", votes(M1="yes"))], SEATS, 0.5)
    assert (after.tallies[0].count("yes"), after.tallies[0].count("no")) == (0, 1)


MOTIONS, AMENDED = ["M1", "M2", "M3", "M9"], ["A1", "A2", "A3", "A9"]
TEXTS = ["Split it.", "Keep it.", "split it", "Wait."]
SPEECH = st.builds(
    lambda moved, seconds, changes, accepts, cast: said(
        motions=[{"text": text} for text in moved],
        seconds=seconds,
        amendments=[{"motion": ident, "text": text} for ident, text in changes],
        accepts=accepts,
        ballot=[{"item": item, "vote": vote, "reason": "r"} for item, vote in cast],
    ),
    st.lists(st.sampled_from(TEXTS), max_size=2),
    st.lists(st.sampled_from(MOTIONS), max_size=3),
    st.lists(st.tuples(st.sampled_from(MOTIONS), st.sampled_from(TEXTS)), max_size=2),
    st.lists(st.sampled_from(AMENDED), max_size=2),
    st.lists(st.tuples(st.sampled_from([*MOTIONS, *AMENDED]), st.sampled_from(["yes", "no", "abstain"])), max_size=9),
)
SITTINGS = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.sampled_from(NAMES), SPEECH), max_size=5)), min_size=1, max_size=7
)


@pytest.mark.wide
@settings(max_examples=150, deadline=None)
@given(SITTINGS)
def test_no_sitting_breaks_the_rules(sittings: list[tuple[bool, list[tuple[str, SpeechData]]]]) -> None:
    house = House()
    for turn, (voting, speeches) in enumerate(sittings, 1):
        before, ballot = house, house.ballot(4)
        house = house.voted(turn, ballot, speeches, SEATS, 0.5) if voting else house.debated(turn, speeches)
        accepted = {(name, ident) for name, data in speeches for ident in data.accepts}
        for old, new in zip(before.motions, house.motions, strict=False):
            assert (old.id, old.mover, old.since) == (new.id, new.mover, new.since)
            assert set(old.seconds) <= set(new.seconds) and new.mover not in new.seconds
            if old.text != new.text:
                change = next(item for item in before.pending(old.id) if item.text == new.text)
                by_vote = any(tally.item.id == change.id and tally.carried for tally in house.tallies)
                assert by_vote if voting else (old.mover, change.id) in accepted
                assert len(new.changes) == len(old.changes) + 1
        for tally in house.tallies:
            assert [seat for seat, *_ in tally.votes] == NAMES
            assert sum(tally.count(word) for word in ("yes", "no", "abstain", "absent")) == len(SEATS)
            behind, vendors = tally.vendors
            assert 0 <= behind <= vendors == 3
            if tally.carried:
                assert tally.count("yes") > tally.count("no")
        for motion in house.carried:
            assert house.decisive(motion).item.text == motion.text
        assert len({item.id for item in house.motions}) == len(house.motions)
        assert strict_yaml.load(strict_yaml.dump(house.data()), max_bytes=99_999) == house.data()
        assert not any(vendor in str(house.data()).split() for vendor in ("'A',", "'B',", "'C',"))


# -- what seats say --------------------------------------------------------------------------------


def voice(keys: str = "") -> str:
    return f'---\nposition: "x"\nconfidence: 0.6\n{keys}\n---\n\nBecause.\n'


HOUSE = table()
BALLOT = HOUSE.ballot(9)
VOTED = "ballot:\n" + "".join(f"  - {{item: {item.id}, vote: yes, reason: r}}\n" for item in BALLOT)


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        (SpeechFormat("opening", House()), "stance: I stand\nmotions: [{text: Split it.}, {text: Keep it.}]"),
        (SpeechFormat("opening", House()), "stance: I stand"),
        (SpeechFormat("debate", HOUSE), ""),
        (SpeechFormat("debate", HOUSE), "seconds: M2\naccepts: [A1]\namendments: [{motion: M2, text: Keep.}]"),
        (SpeechFormat("answer", HOUSE), "accepts: A1\nseconds: [M2]"),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace("yes", "true", 1).replace("yes", "No", 1)),
    ],
)
def test_a_seat_is_read(form: SpeechFormat, keys: str) -> None:
    assert form.parse(voice(keys)).position == "x"


def test_votes_are_read_as_they_are_meant() -> None:
    data = SpeechFormat("vote", HOUSE, BALLOT).parse(
        voice(VOTED.replace("yes", "true", 1).replace("yes", "No", 1).replace("yes", '"abstain"', 1))
    )
    assert [(vote.item, vote.vote) for vote in data.ballot] == [("M1", "yes"), ("A1", "no"), ("M2", "abstain")]


@pytest.mark.parametrize(
    ("form", "keys", "sentence"),
    [
        (SpeechFormat("opening", House()), "", "`stance` is missing"),
        (SpeechFormat("opening", House()), "stance: x\nseconds: [M1]", "`seconds` has no place in the stage opening"),
        (SpeechFormat("opening", House()), "stance: x\nmotions: [{text: a}, {text: b}, {text: c}]", "at most 2 in a"),
        (SpeechFormat("opening", House()), "stance: x\nmotions: [a]", "must be a mapping with the keys text, reason"),
        (
            SpeechFormat("debate", HOUSE),
            VOTED,
            "`ballot` has no place in the stage debate; it takes motions, seconds",
        ),
        (SpeechFormat("debate", HOUSE), "seconds: [M7]", "There is no motion M7."),
        (SpeechFormat("debate", HOUSE), "amendments: [{motion: M7, text: x}]", "There is no motion M7."),
        (SpeechFormat("debate", HOUSE), "accepts: [A7]", "There is no open amendment A7."),
        (SpeechFormat("debate", HOUSE), "seconds: [../x]", "`seconds.0`: must match pattern"),
        (SpeechFormat("answer", HOUSE), "motions: [{text: x}]", "`motions` has no place in the stage answer"),
        (SpeechFormat("vote", HOUSE, BALLOT), "", "ballot: M1, A1, M2 must have a vote"),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace("A1", "M2"), "ballot: the item M2 is used twice."),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace("A1", "M5"), "ballot: M5 is not on it."),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace("yes", "maybe", 1), "must be 'yes', 'no' or 'abstain'"),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace("reason: r", "reason: ''", 1), "must not be empty"),
        (SpeechFormat("vote", HOUSE, BALLOT), VOTED.replace(", reason: r", "", 1), "`ballot.0.reason` is missing"),
    ],
)
def test_a_seat_is_sent_back_with_what_is_wrong(form: SpeechFormat, keys: str, sentence: str) -> None:
    found = problems(form, voice(keys))
    assert any(sentence in problem for problem in found), found


def test_no_key_is_one_that_files_keep_for_cdo() -> None:
    assert not {*SpeechData.model_fields, *CaseData.model_fields} & {*OWN_KEYS}


def test_a_vote_that_cannot_be_read_is_not_mended() -> None:
    assert SpeechFormat("vote", HOUSE, BALLOT).repair(voice()) is None
    assert problems(SpeechFormat("debate", HOUSE), "no front matter")


# -- the minutes -----------------------------------------------------------------------------------

CARRIED = vote(table(), [{"M1": "yes", "A1": "no", "M2": "no"}] * 4 + [{"M1": "no", "A1": "no", "M2": "no"}])
LOST = vote(table(), [{"M1": "no", "A1": "no", "M2": "no"}] * 4)
MINUTES, OPEN = MinutesFormat(FinalFormat(), CARRIED), MinutesFormat(FinalFormat(), LOST)
SILENT = MinutesFormat(FinalFormat(outside=(("T1", "now or later"),)), House())


def minutes(house: House, decision: str, minority: str = "operator voted against M1: it costs", cut: int = 0) -> str:
    told = "\n".join(f"- **{tally.words}**" for tally in house.tallies[cut:])
    return f"{final_text(decision, minority=minority)}\n## Votes\n\n{told}\n"


def test_whole_minutes_are_taken() -> None:
    assert MINUTES.against == (("operator", CARRIED.motions[0], "because of M1"),)
    assert MINUTES.parse(minutes(CARRIED, "M1 carried.")).sections[-1] == "Votes"
    assert OPEN.parse(minutes(LOST, f"{NO_MAJORITY}: split."))


@pytest.mark.parametrize(
    ("form", "text", "sentence"),
    [
        (MINUTES, final_text("M1"), "The section `## Votes` is missing."),
        (MINUTES, minutes(CARRIED, "Split it."), "Decision must name M1, which carried: Split it."),
        (MINUTES, minutes(CARRIED, "M10 it is."), "Decision must name M1, which carried: Split it."),
        (MINUTES, minutes(CARRIED, "M1", cut=1), "Votes must state as recorded: `M1 carried: 4 yes / 1 no; "),
        (
            MINUTES,
            minutes(CARRIED, "M1").replace("4 yes", "5 yes"),
            "Votes must state as recorded: `M1 carried: 4 yes",
        ),
        (MINUTES, minutes(CARRIED, "M1", "None."), "on one line, that operator voted against M1: because of M1"),
        (MINUTES, minutes(CARRIED, "M1", "operator did.\n\nM1 passed."), "that operator voted against M1"),
        (OPEN, minutes(LOST, "Split it."), f"No motion carried: Decision must say `{NO_MAJORITY}`."),
        (OPEN, minutes(LOST, ""), "The section `## Decision` is empty."),
    ],
)
def test_minutes_are_sent_back_with_what_is_left_out(form: MinutesFormat, text: str, sentence: str) -> None:
    found = problems(form, text)
    assert any(sentence in problem for problem in found), found


@pytest.mark.parametrize("form", [MINUTES, OPEN, SILENT])
@pytest.mark.parametrize("text", ["## Decision\n\nWait.", final_text("Wait."), minutes(CARRIED, "Wait.", "None.", 1)])
def test_what_is_left_out_is_added_from_the_record(form: MinutesFormat, text: str) -> None:
    repaired = form.repair(text)
    assert repaired is not None
    form.parse(repaired[0])
    assert "what the votes decided" in repaired[1]
    assert ("step for T1" in repaired[1]) is (form is SILENT)
    again = form.repair(repaired[0])
    assert again is not None and again[1] == ()
    assert MINUTES.repair("## Votes\n\nx") is None


# -- grammars --------------------------------------------------------------------------------------

HELD: list[ReplyFormat] = [
    SpeechFormat("opening", House()),
    SpeechFormat("debate", House()),
    SpeechFormat("debate", HOUSE),
    SpeechFormat("answer", CARRIED),
    SpeechFormat("vote", HOUSE, BALLOT),
    MINUTES,
    OPEN,
    SILENT,
    MinutesFormat(FinalFormat(outside=(("T1", "é" * 4000),)), CARRIED),
]


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.name)
def test_whatever_a_grammar_lets_a_small_model_write_is_valid(held: ReplyFormat) -> None:
    tree = re._parser.parse(test_gbnf.as_regex(held.grammar()))  # type: ignore[attr-defined]
    for seed in range(25):
        held.parse(test_gbnf._walk(tree, random.Random(seed)))


def test_a_small_model_can_vote_either_way() -> None:
    held = SpeechFormat("vote", HOUSE, BALLOT)
    tree = re._parser.parse(test_gbnf.as_regex(held.grammar()))  # type: ignore[attr-defined]
    cast = {vote.vote for seed in range(25) for vote in held.parse(test_gbnf._walk(tree, random.Random(seed))).ballot}
    assert cast == {"yes", "no", "abstain"}


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=200), st.sampled_from(HELD))
def test_no_text_does_harm(text: str, held: ReplyFormat) -> None:
    for whole in (text, f"---\n{text}\n---\n", f"## Decision\n\n{text}", agent_text(text or "x")):
        try:
            held.parse(whole)
        except InvalidReply as invalid:
            assert invalid.problems
        repaired = held.repair(whole)
        if repaired:
            held.parse(repaired[0])


def test_an_id_in_small_letters_is_the_same_id() -> None:
    found = said(seconds=["m1"], accepts=[" a2 "], ballot=[{"item": "m3", "vote": "Yes", "reason": "x"}])
    assert (found.seconds, found.accepts, found.ballot[0].item) == (("M1",), ("A2",), "M3")
