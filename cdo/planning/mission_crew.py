"""Defines the team and the limits of a cabal: the part of the frozen plan that only a cabal has."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cdo.content.schemas import Looks
from cdo.core.errors import SessionError
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG, operatives
from cdo.core.schema import Schema

# The version of the rules of missions: what judges recorded replies otherwise, or makes other files of them, needs
# another one. A mission keeps the rules that it was begun under. Since 4:
# - a persona that begins with the name ("Richard, Full-Stack Developer") gives that name;
# - what the watchdog says twice in the same words, as a finding and as a collab, is one flag;
# - the chair plans once it has asked as often as it may in a step;
# - a check that asks for a reference to a product without versions is refused;
# - a message of the envoy that calls something approved cites that, and nothing is online;
# - references in code spans and indented code of a document are delivered as they were accepted;
# - what a product had to meet that is archived is told as a concern.
# Since 5:
# - code spans in FINAL.md, CHAT.md and TREE.md stay code;
# - events call operatives by the names of their personas, and say of which product a version, review or inspection
#   is missing;
# - the summary of a Decision's deliberation is a sentence;
# - words in a link definition of Markdown are no quote of it;
# - what the envoy says of a round stands behind what is accepted, by code.
RULES = 5
KNOWN_RULES = (3, 4, RULES)
Round = Annotated[int, Meta(ge=1, le=100)]


class MissionLimits(Schema, frozen=True, kw_only=True):
    """The limits of a mission: the most operatives, rounds and deliberations.

    After `idle` rounds without progress the chair is nudged, after one more it is told to plan anew, and after
    another one the mission halts. At most `questions` may be asked in one step. `presets` are the presets by which a
    Decision may be deliberated. A step shows at most `tokens` (estimated) beside its rules.
    """

    operatives: Annotated[int, Meta(ge=1, le=16)]
    rounds: Round
    idle: Annotated[int, Meta(ge=1, le=20)]
    deliberations: Annotated[int, Meta(ge=0, le=20)]
    questions: Annotated[int, Meta(ge=0, le=10)]
    presets: tuple[str, ...]
    tokens: Annotated[int, Meta(ge=500)]


class Kernel(MissionLimits, frozen=True, kw_only=True):
    """`engine/cabal-kernel.md`: the rules of every step, and the default limits of a mission.

    In a repository the team is shown at most `context_tokens` of it, and may look into it in each reply as often as
    `looks` ([requests, rounds]) says.
    """

    purpose: str
    load_when: str
    kind: Literal["cabal"]
    context_tokens: Annotated[int, Meta(ge=0)]
    looks: Looks


class Crew(MissionLimits, frozen=True, kw_only=True):
    """The team of a mission and its limits: `seats` are the models by agent.

    `material`: there is material beside the request (files given, or a repository), which all agents are shown.
    `request` is the size of the request in estimated tokens.
    With `exec`, commands in definitions of done are run. With `sign_off`, the person has to sign off the result
    before the mission is done. `deliver` says how accepted files are handed over to the git repository at `root`, as
    seen from the session's folder. `rules` is the version of the mission's rules that it was begun under.
    The deliberation of a Decision is shown at most `evidence` estimated tokens of files; with 0, none.
    """

    seats: dict[str, str]
    material: bool = False
    exec: bool = False
    sign_off: bool = False
    deliver: Literal["", "branch", "patch"] = ""
    root: str = ""
    request: Annotated[int, Meta(ge=0)] = 0
    rules: int = 1
    evidence: Annotated[int, Meta(ge=0)] = 0

    def require_sound(self) -> None:
        if set(self.seats) != set(self.agents):
            raise ValueError(f"the seats must be those of the team: {', '.join(self.agents)}")

    @property
    def known_rules(self) -> bool:
        """True if this version of cdo follows the rules that the mission was begun under."""
        return self.rules in KNOWN_RULES

    def require_known_rules(self) -> None:
        """Raise `SessionError` if the mission was begun under rules that this version of cdo no longer follows."""
        if not self.known_rules:
            raise SessionError(
                "This mission was begun by another version of cdo, whose rules of missions differ.",
                "Its files stay as they are. Begin a new mission; give it the useful files with -c.",
            )

    @property
    def request_shown(self) -> int:
        """The tokens of the request that every step shows: all, but at most a quarter of what a step shows."""
        return min(self.request, self.tokens // 4)

    @property
    def agents(self) -> tuple[str, ...]:
        """The whole team."""
        return (CHAIR, *operatives(self.operatives), WATCHDOG, ENVOY)
