"""Offers what a person may say to a run: answers, the verdict on a mission, letters, and letters taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from cdo.app.waiting import answer_seat, put_answer, put_letter
from cdo.cabal.files.person_files import LETTER, LetterFormat
from cdo.cabal.model.entities import BLOCKING, Status
from cdo.cabal.replies.fields import CollabKind
from cdo.cabal.rules.sign_off import accepts
from cdo.core.errors import SessionError
from cdo.core.formatting import one_line, visible
from cdo.core.mission_names import USER
from cdo.core.people import BRIEFS
from cdo.core.steps import Document, InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.person_reply import ANSWER as POSITION
from cdo.formats.person_reply import FORM, SURE, WITHDRAWN, filled_in
from cdo.history.pending import ANSWER, PendingInput, open_seats
from cdo.planning.turn_plan import ALL
from cdo.programs.deliberation import team
from cdo.runner.people.human_steps import INBOX, chosen
from cdo.session.artifact import digest
from cdo.web_view.form_fields import Form, FormField, PersonSession, RefusedForm

ANSWER_KIND, VERDICT_KIND, SEAT_KIND = "answer", "verdict", "seat"
LETTER_KIND, WITHDRAWAL_KIND = "letter", "withdrawal"
_LONGEST = 4000  # characters of an answer
_SEAT = 10_000  # characters of a part of an answer to a turn
_NOTE = 2000  # characters of a letter to a voice
_OWN = "own"  # the choice of an answer in the person's own words
_TYPES = get_args(get_args(CollabKind)[0])


# -- answers ---------------------------------------------------------------------------------------


def answer_opened(session: PersonSession) -> Form | None:
    """Return the form that answers a question of the team, None if it has none."""
    asked = session.asked
    if asked is None or asked.file or asked.sign_off:
        return None
    words = FormField("words", "Answer", "long", most=_LONGEST, required=not asked.options)
    fields = [words]
    if asked.options:
        options = [(str(number), one_line(option, 400)) for number, option in enumerate(asked.options, 1)]
        choice = (*options, (_OWN, "in my own words:"))
        fields = [
            FormField("choice", "Your answer", "radio", options=choice, required=True),
            FormField("words", "Answer in your own words", "long", most=_LONGEST),
        ]
    explanation = f"{visible(asked.question)}\n\n{_left(session)}"
    return Form(
        ANSWER_KIND, "The team asks you", explanation, tuple(fields), _seen(session, asked), "Send the answer"
    )


def answer_taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Write the answer; return what was done. Raises `RefusedForm` and `SessionError`."""
    asked, choice, words = session.asked, values.get("choice", _OWN), values["words"]
    assert asked
    if choice == _OWN and not words:
        raise RefusedForm({"words": ["The answer is empty."]})
    if choice != _OWN and words:
        raise RefusedForm({"words": ["You chose an answer and wrote one: take one of them."]})
    text = words if choice == _OWN else asked.options[int(choice) - 1]
    return _answered(session, asked, text)


def verdict_opened(session: PersonSession) -> Form | None:
    """Return the form that signs a mission off or sends it back, None if it does not ask for that."""
    asked = session.asked
    if asked is None or not asked.sign_off:
        return None
    verdicts = (("accept", "Accept: the mission is done"), ("back", "Send back: something has to change"))
    fields = (
        FormField("verdict", "Verdict", "radio", options=verdicts, required=True),
        FormField(
            "note", "What has to change", "long", most=LETTER, hint="It keeps the mission open until it is met."
        ),
    )
    explanation = f"{visible(asked.question)}\n\n{_left(session)}"
    return Form(VERDICT_KIND, "Sign the mission off", explanation, fields, _seen(session, asked), "Give the verdict")


def verdict_taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Write the verdict; return what was done. Raises `RefusedForm` and `SessionError`."""
    asked, note = session.asked, values["note"]
    assert asked
    if values["verdict"] == "accept":
        if note:
            raise RefusedForm({"note": ["A note is for sending the mission back. Leave it empty to accept."]})
        return _answered(session, asked, asked.options[0])
    if not note or accepts(note) or chosen(note, asked.options) in asked.options:
        raise RefusedForm({"note": ["Say in words what has to change."]})
    return _answered(session, asked, note)


def _left(session: PersonSession) -> str:
    """Return what a person needs to know about the way of an answer."""
    before = session.archive.text(ANSWER)
    told = (
        f"You answered “{one_line(before, 200)}”, which was not taken yet; an answer now replaces it. "
        if before
        else ""
    )
    if session.running:
        return f"{told}The process that runs this session waits for it, and goes on with it."
    return f"{told}No process runs this session. Answer, then {session.resume} goes on."


def _seen(session: PersonSession, asked: PendingInput) -> str:
    return digest([asked.name, asked.question, list(asked.options), session.archive.text(ANSWER)])


def _answered(session: PersonSession, asked: PendingInput, text: str) -> str:
    others = [name for name in session.archive.files() if name.startswith(f"{INBOX}/answer") and name < ANSWER]
    if others:
        raise SessionError(f"{others[0]} answers this already.", "Remove it, then answer here.")
    taken = put_answer(session.path, asked, text, session.archive.text(ANSWER))
    then = "The process that waits for it goes on." if session.running else f"Now {session.resume} goes on with it."
    return f"Your answer is “{one_line(taken, 200)}”. {then}"


def seat_opened(session: PersonSession) -> Form | None:
    """Return the form in which a person who has a seat answers a turn, None if nobody is asked."""
    seats = open_seats(session.archive)
    if not seats:
        return None
    people = tuple((item.person, item.person) for item in seats)
    later = any(item.turn > 1 for item in seats)
    fields = (
        FormField("person", "Who answers", "choice", people[0][0], options=people, required=True),
        *(
            FormField(
                part.name,
                part.title,
                "text" if part == SURE else "long",
                hint=part.told,
                most=_SEAT,
                required=part == POSITION,
                rows=4,
            )
            for part in FORM
            if part != WITHDRAWN or later
        ),
    )
    asked = "\n".join(visible(item.question) for item in seats)
    told = f"{asked}\n\nPlain words are enough; leave out what you like. What the voices are told, and so are you:"
    briefs = tuple(f"{BRIEFS}/{item.name}.md" for item in seats)
    seen = digest([[item.name, session.archive.text(item.file)] for item in seats])
    return Form(SEAT_KIND, "Your seat in this turn", told, fields, seen, "Send the answer", reading=briefs)


def seat_taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Write the answer to a turn; return what was done. Raises `CdoError`."""
    asked = answer_seat(session.path, filled_in(values), values["person"])
    then = "The process that runs this session takes it." if session.running else f"Now {session.resume} goes on."
    return f"The answer of {asked.person} is in {asked.file}. {then}"


# -- letters ---------------------------------------------------------------------------------------


def letter_opened(session: PersonSession) -> Form | None:
    """Return the form for a letter to the team, None where nobody would read it."""
    if session.mission is None:
        plan = session.frozen.plan
        if not plan.team or session.ended:
            return None
        to = ((ALL, "every voice"), *((name, name) for name in _voices(session)))
        fields = [
            FormField("to", "To", "choice", ALL, options=to, required=True),
            FormField("text", "Letter", "long", most=_NOTE, required=True, rows=5),
        ]
        when = "The voice gets it in its next turn."
    else:
        state = session.mission.state
        live = [item for item in state.products.values() if item.status is not Status.ARCHIVED]
        about = (("", "the whole team"), *((item.id, f"{item.id}: {one_line(item.name, 80)}") for item in live))
        who, kinds = "The whole team, or those who work on a product.", tuple((kind, kind) for kind in _TYPES)
        blocks = f"From {BLOCKING} on, the product is not accepted before this is met."
        fields = [
            FormField("product", "To", "choice", hint=who, options=about),
            FormField("type", "What it is", "choice", "feedback", options=kinds, required=True),
            FormField("importance", "Importance", "number", "7", blocks, span=(1, 10), required=True),
            FormField("text", "Letter", "long", most=LETTER, required=True, rows=5),
        ]
        when = "The team reads it before its next round."
    explanation = f"{when} {_then(session)}"
    return Form(LETTER_KIND, "Write to the team", explanation, tuple(fields), _of(session), "Send the letter")


def letter_taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Leave the letter; return what was done. Raises `RefusedForm` and `SessionError`."""
    if session.mission is None:
        return _sent(session, team.INBOX, {"to": values["to"]}, values["text"], team.NoteFormat())
    head = {key: values[key] for key in ("product", "type") if values[key]}
    return _sent(session, INBOX, {**head, "importance": int(values["importance"])}, values["text"], LetterFormat())


def withdrawal_opened(session: PersonSession) -> Form | None:
    """Return the form that takes a letter back, None if none of the person's is open."""
    collabs = session.mission.state.collabs.values() if session.mission else ()
    mine = tuple(
        (item.id, f"{item.id}: {one_line(item.comment, 80)}") for item in collabs if item.author == USER and item.open
    )
    if not mine:
        return None
    fields = (
        FormField("id", "What you wrote", "choice", mine[0][0], options=mine, required=True),
        FormField("text", "Why it no longer holds", "long", most=LETTER),
    )
    explanation = f"What you take back keeps no product open any more. {_then(session)}"
    return Form(WITHDRAWAL_KIND, "Take a letter back", explanation, fields, _of(session), "Take it back")


def withdrawal_taken(session: PersonSession, form: Form, values: Mapping[str, str]) -> str:
    """Leave the letter that takes another one back; return what was done. Raises `SessionError`."""
    return _sent(session, INBOX, {"withdraw": [values["id"]]}, values["text"], LetterFormat())


def _voices(session: PersonSession) -> tuple[str, ...]:
    """Return the names of the voices on the roster; () before the first turn, and if it cannot be read."""
    try:
        found: Any = strict_yaml.load(session.archive.text(f"{team.FOLDER}/roster.yaml") or "", max_bytes=1 << 20)
        return tuple(dict.fromkeys(str(mate["name"]) for mate in found["mates"]))
    except (strict_yaml.YamlProblem, TypeError, LookupError):
        return ()


def _sent(session: PersonSession, folder: str, head: Mapping[str, Any], text: str, format: Document) -> str:
    """Leave a letter as its format asks for it."""
    letter = f"---\n{strict_yaml.dump(dict(head))}---\n{text}\n"
    try:
        format.parse(letter)
    except InvalidReply as invalid:
        raise RefusedForm({"text": list(invalid.problems)}) from None
    if not put_letter(session.path, folder, letter):
        return f"The same letter waits in {folder}/ already. {_then(session)}"
    return f"The letter is in {folder}/. {_then(session)}"


def _then(session: PersonSession) -> str:
    """Return what happens next with a letter."""
    if session.running:
        return "The session is running and takes it up."
    return f"{session.resume} {'opens the mission again' if session.ended else 'goes on'} with it."


def _of(session: PersonSession) -> str:
    """Return what identifies a session: a letter overwrites nothing, so it is taken in any state."""
    return digest([session.name, session.frozen.created])
