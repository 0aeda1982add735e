"""Decides whether a question has anything to do with a repository. Pure.

Three things speak for it: the question refers to the repository ("our …", "this code", "technical debt"); it names
a file or an identifier of it; or enough of its words belong to it. A word belongs to a repository that has it in the
name of a file, a folder or a definition, or in a heading. In the text alone it counts less. Everyday words count
neither way, and neither do tests, whose examples are about anything.

A question in another language than English counts as relevant: its words cannot be expected in the names of code.
"""

from __future__ import annotations

import re

from cdo.core.words import FUNCTION_WORDS, words
from cdo.repository.ranking import Ranking, stem_of

_IN_TEXT = 0.7  # what a word counts that stands in the text but in no name
_TEXT_SHARE = 0.01  # share of the files that must hold it
_ENOUGH = 0.6  # share of the question's words that must belong to the repository
_LITTLE = 0.3  # the same where the question points at something ("the journal", "we")
_FEW = 20  # files; in fewer, a word that only the text holds is no chance
_MOST = 24  # words that are looked at

# Words about any repository as a whole, with no noun of its own.
_WHOLE = re.compile(
    r"\b(?:architecture|architectural|code ?base|monorepo|refactor\w*|repo|repos|repository|rewrite"
    r"|(?:technical|tech) debt)\b",
    re.IGNORECASE,
)
# References that mean the repository or its makers, whatever else is asked.
_OURS = re.compile(
    r"\b(?:ours?|(?:this|the|these|my) (?:api|app|application|branch|build|checkout|code|code ?base|commit|diff"
    r"|framework|implementation|library|module|package|patch|program|project|pull request|repo|repository|service"
    r"|source code|test suite|test|tool)s?)\b",
    re.IGNORECASE,
)
_WE = re.compile(r"\b(?:we|us)\b", re.IGNORECASE)
_HERE = re.compile(r"\b(?:this|here)\b", re.IGNORECASE)
_POINTED = re.compile(r"\b(?:the|this|these|those|its|each|every) (?!best |most )(?:[^\W\d_]+[ -])?$", re.IGNORECASE)
_OF_ANOTHER = re.compile(r" of (?:the )?([A-Z]\w+)")
_WORD = re.compile(r"[^\W\d_]{2,40}")
_OTHER_SCRIPT = re.compile(r"[^\W\d_a-zA-ZÀ-ÿ]")

# Words that say nothing about what a question is about, though code uses some of them.
_EVERYDAY = words("""
    add added adopt allow almost already always answer around ask away back bad become begin big bigger biggest
    buy call came case cause causes change changes check choose clean clear come complete consistent correct
    correctly cost costs count create current day days deal difference different drop early easy effect end
    enough ever example explain fail fails far fast faster feel few find first fix four future general generally
    give go goes going good great guide hard help high hour idea important improve increase instead introduce
    issue issues keep kind know large largest last late lead learn least left let life like line list little
    live local long look low main make making mean meaning member migrate missing month move name near new next
    nice number old open order part people person place plan plans play please point possible problem problems
    properly put question quick rather ready real really reason recommend reduce remove replace result right
    risk risks run safe say second see set short shorter show simple size slow small some someone start step
    still stop summarise summarize support take team tell text thing things think third time times today
    together tomorrow top true try turn twice two type understand upgrade useful usual value want way ways week
    well whenever word words work works world worth write written wrong wrongly wrote year years
""")  # fmt: skip
# Words about software and well-known technologies: with "we" or "the" before them a question is about the repository.
_SOFTWARE = words("""
    algorithm api apis app async auth authentication authorization aws azure backend backup benchmark branch bug
    bugs build cache caches caching cdn ci cli client cloud code commit compiler component components
    concurrency config configuration container containers coverage cpu crash data database databases db debug
    dependencies dependency deploy deployment design django docker docs documentation elasticsearch encryption
    endpoint endpoints error errors event exception exceptions feature features flask format framework
    frameworks frontend gcp git golang graphql grpc http index infrastructure integration interface interfaces
    java javascript json jwt kafka kubernetes latency layer layers libraries library license lint linter locking
    log logging logs maintainability memory message messages metrics microservice microservices middleware
    migration migrations mock module modules mongodb monitoring monolith mysql naming nosql oauth observability
    package packages parallelism parser performance permissions pipeline plugin plugins postgres postgresql
    process processes production protocol proxy python queue queues rabbitmq rate react readme redis refactoring
    regression release releases rest retries retry rollback rust scalability scale schema script secrets
    security server serverless servers service services sharding software sql sqlite stack storage structure
    system systems terraform test testing tests thread threading threads throughput timeout timeouts tooling
    typescript typing ui validation version versioning versions web webhook webhooks yaml
""")  # fmt: skip
_FRAME = words(
    "architecture architectural codebase entire overall project projects repo repos repository repositories whole"
)
# Frequent words of other languages that are no English words.
_FOREIGN = words("""
    aber auf con dans das dei del dem den der des det di ein eine einen eller els est et för het il ist je la
    las le les los mit nach nicht não och oder para per por pour qual que quel quelle questo qué sie sind sollen
    sollten sur uma und une van você voor wie wir wird zu zum zur è é être
""")  # fmt: skip


def concerns(problem: str, ranking: Ranking) -> bool:
    """Tell whether a question is about the repository whose files `ranking` has counted."""
    problem = " ".join(problem[:20_000].split())
    if ranking.is_named or _OURS.search(problem) or _is_foreign(problem):
        return True
    subject = _Subject(problem, ranking)
    ours = subject.pointed or bool(_WE.search(problem) or _WHOLE.search(problem))
    share = subject.share(ours)
    if share is None:
        return ours or (bool(_HERE.search(problem)) and not subject.general)
    if ours:
        return share >= _LITTLE
    # In a large repository the text alone holds one or two words by chance.
    certain = 1.0 in subject.found.values() or len(subject.found) > 2 or ranking.held("")[1] < _FEW
    return share >= _ENOUGH and certain


class _Subject:
    """What a question is about, without everyday words: how far each word belongs to the repository.

    `general` are words about software that the repository does not have. `pointed` is true if the question points at
    something that the repository has, or at software in general, as in "the journal".
    """

    def __init__(self, problem: str, ranking: Ranking) -> None:
        self.found: dict[str, float] = {}
        self.general: set[str] = set()
        self.pointed = False
        self._ranking = ranking
        text = _WHOLE.sub(lambda match: "-" * len(match[0]), problem)
        for match in _WORD.finditer(text):
            word = match[0].lower()
            if word in FUNCTION_WORDS | _EVERYDAY | _FRAME or ranking.is_frame(word):
                continue
            if len(self.found) == _MOST:
                break
            worth = self._worth(word)
            if worth or word not in _SOFTWARE:
                self.found[word] = worth
            else:
                self.general.add(word)
            if (worth == 1 or word in _SOFTWARE) and _POINTED.search(text[: match.start()]):
                other = _OF_ANOTHER.match(text, match.end())
                self.pointed = self.pointed or not other or self._worth(other[1].lower()) > 0

    def share(self, ours: bool) -> float | None:
        """Return the share of the words that belong to the repository; None if there are none.

        Words about software in general count neither way if the question refers to `ours`, else against.
        """
        count = len(self.found) + len(self.general) * (not ours)
        return sum(self.found.values()) / count if count else None

    def _worth(self, word: str) -> float:
        stems = {stem_of(word), *([stem_of(f"{word[:-3]}y")] if word.endswith(("ies", "ied")) else [])}
        if stems & self._ranking.names:
            return 1.0
        held, files = self._ranking.held(stem_of(word))
        return _IN_TEXT if held >= max(1, _TEXT_SHARE * files) else 0.0


def _is_foreign(problem: str) -> bool:
    used = {word.lower() for word in _WORD.findall(problem)}
    return len(used & _FOREIGN) >= 2 or bool(_OTHER_SCRIPT.search(problem))
