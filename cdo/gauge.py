"""How hard is this problem? Picks a preset when none is given (seed 004 section 4, GAUGE).

The seed's method: token count, question marks, domain keywords, scope markers. No model is asked: gauge is
pure, deterministic and free, and says why. The tables below are all there is to tune. A pattern matches
whole words of the problem, a `*` at its end any ending; hyphens and other signs count as blanks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

# -- the tables -----------------------------------------------------------------------------------

# A problem gets the last preset whose score it reaches.
THRESHOLDS: Mapping[str, float] = {"quick": 0.0, "think": 1.5, "deep": 4.0, "full": 7.0}
# `full` costs tens of calls: length and questions alone never lead there, only wide scope together with
# this many fields does.
FULL_NEEDS_FIELDS = 2
BELOW_FULL = 6.5  # the most that any other problem scores

# Token count: different words, so that saying a thing twice does not make it harder.
LENGTH: Mapping[int, float] = {12: 0.5, 22: 1.0, 40: 1.5, 70: 2.0, 120: 3.0}

QUESTION_POINTS = (0.0, 2.0, 2.5, 3.0)  # for none, one, two, three or more question marks
OPEN_TASK = 2.5  # a task that has no yes or no for an answer
OPEN_QUESTION = 1.0  # instead of OPEN_TASK where there is a question mark: both say that something is asked

FIELD_POINTS = (0.0, 1.5, 2.5, 3.0, 3.5)  # for none, one, … four fields; more do not count
WIDE_POINTS = (0.0, 1.5, 2.5)  # for none, one, two kinds of wide scope; more do not count
NO_KNOWN_WORD = 1.0  # another language: no keyword can match, so length and question marks get a start

NARROW_POINTS: Mapping[str, float] = {"summary": -4.0, "lookup": -2.5, "small edit": -2.5, "small task": -1.5}

# No `*` here: the words of these patterns are left out of the token count, so that adding one never raises.
NARROW: Mapping[str, str] = {
    "summary": """
        summarize, summarise, summarizing, summarising, summary, tl dr, tldr, recap, in one sentence,
        in a sentence, in two sentences
        """,
    "lookup": """
        what is, what s, what does this, what does it mean, who is, who wrote, when is, when was, when did,
        where is, how do i, define, definition of, meaning of, translate, convert, list the, look up,
        how many, how old
        """,
    "small edit": """
        typo, typos, rename, renaming, one liner, oneliner, reword, rephrase, proofread, indent, spelling,
        reformat, bump
        """,
    "small task": """
        just, quick, quickly, simply, briefly, tiny, trivial, small change, small fix, small question,
        simple change, simple fix, simple question
        """,
}
OPEN: Mapping[str, str] = {
    "evaluation": "evaluat*, assess*, audit, review, critique, appraise, pros and cons",
    "design": """
        design, designs, designing, redesign*, propose, devise, develop a, draft a, model the, lay out
        """,
    "comparison": "compare, comparing, comparison, versus, vs, choose between, decide between",
    "investigation": """
        investigat*, analyse, analyze, analysing, analyzing, diagnos*, root cause, find out why,
        figure out, debug
        """,
    "strategy": """
        strateg*, roadmap*, plan a, plan an, plan the, plan our, plan for, plan how, planning, rethink,
        recommend*, prioriti*
        """,
    "open question": """
        how should, how can we, how could we, how might, how would, how do we, what approach,
        which approach, best approach, best way to
        """,
}
WIDE: Mapping[str, str] = {
    "whole system": """
        across, entire, entirely, whole, all services, all our, all the, all teams, all systems,
        every service, every team, every system, end to end, company wide, organisation wide,
        organization wide, system wide, globally, worldwide, at scale
        """,
    "long term": """
        long term, multi year, five year, three year, ten year, three years, five years, ten years,
        next decade
        """,
    "trade-offs": "trade off*, tradeoff*, pros and cons, competing goals, weigh, weighing",
    "from scratch": """
        from scratch, rewrite, rewriting, redesign*, overhaul*, replatform*, re platform*, rearchitect*,
        re architect*, greenfield, reorgani*, from the ground up
        """,
}
FIELDS: Mapping[str, str] = {
    "architecture": """
        architect*, microservice*, monolith*, event driven, event sourcing, execution model, backend,
        frontend, api, apis, interface, interfaces, framework*, distributed, message queue*,
        service mesh, services, platform, modular, plugin*, multi tenant, serverless, graphql, grpc,
        coupling
        """,
    "security": """
        secur*, authenticat*, authoriz*, authoris*, auth, oauth, sso, encrypt*, threat*, vulnerab*,
        attack*, password*, secrets, credential*, permission*, tls, zero trust, breach*, exploit*, login
        """,
    "data": """
        data, database*, sql, postgres*, mysql, mongodb, schema, schemas, warehouse*, data lake, etl,
        analytics, storage, index, indexes, replication, sharding, consistency, dataset*, retention
        """,
    "performance": """
        performan*, latency, latencies, throughput, scale, scales, scaling, scalab*, bottleneck*, cache,
        caches, caching, slow, slower, faster, load test*, concurren*, memory leak*, high load
        """,
    "migration": """
        migrat*, legacy, deprecat*, port to, cutover, cut over, backwards compatib*, backward compatib*,
        upgrade, upgrading, move to, moving to, move from, switch to, switching to
        """,
    "cost": """
        cost, costs, costly, budget*, pricing, price, prices, spend, spending, expens*, invest, investing,
        investment*, roi, financ*, funding, revenue, profit*, cash flow, vendor*
        """,
    "legal": """
        legal*, gdpr, hipaa, complian*, licens*, privacy, regulat*, contract, contracts, liabilit*,
        copyright, patent*, law, laws, lawsuit*, pci
        """,
    "team": """
        team, teams, teammate*, hiring, hire, hires, organisation*, organization*, reorgani*, onboarding,
        staff*, culture, remote work, office, manager*, headcount, on call, engineers, employees
        """,
    "product": """
        product, products, customer*, user experience, ux, feature*, market, markets, marketing,
        competitor*, launch*, adoption, churn, subscription*, business model, brand*, shop
        """,
    "operations": """
        deploy*, kubernetes, reliab*, availab*, outage*, incident*, crash*, flaky, monitoring, observab*,
        ci, ci cd, pipeline*, rollback*, disaster recovery, backup*, cloud, region, regions, infrastruct*
        """,
    "testing": """
        test suite*, tests, testing, test coverage, quality assurance, qa, regression*, fuzz*, unit test*
        """,
    "research": """
        hypothes*, experiment*, clinical, statistic*, literature, methodology, machine learning,
        fine tun*, llm, llms, ethic*, climate, policy, policies
        """,
}

# What tells English from other languages: words that its neighbours do not share.
ENGLISH = """
    the and to should our are with what how this that it my you your can does which why would from be we need
    have make use about their them they there if when where who than because every not
    """
FOREIGN_WORDS = 5  # fewer words with none of these may well be English

# At most this much is read: the start, and the end, where the question under a long paste stands.
READ_START, READ_END = 6_000, 2_000
WHY_LIMIT = 120

_WORD = re.compile(r"[^\W_]+")
_QUESTION_MARK = re.compile(r"\?(?![\w?&=/%])|[？؟]+")  # the last of `???`; not the one inside a URL
# Scripts without blanks: Thai and Lao, Burmese, Khmer, kana, Han. (As one pattern: 3 ms at every start.)
_UNSPACED = (
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u3040", "\u30ff"),
    ("\u3400", "\u9fff"),
)
_CODE_START = re.compile(
    r"(?:async def|def|class|import|from \S+ import|return|func|fn|const|let|var|public|private|static)\s"
    r"|(?:if|elif|for|while|with|except|else|try)\b.*:$"
    r"|#include|Traceback \(|File \"|at \S+\(|diff --git|@@ |>>> |[})\]]|\"[^\"]*\":|\d{4}-\d\d-\d\d[T ]\d\d:"
)
_CODE_ENDS = ("{", "}", "};", ");", "];", '";', "';", "},", "],")
_CODE_SIGNS = (" = ", " == ", " != ", " += ")
_INDENT = (" ", "\t")
_CODE_LINES = 3  # fewer lines that look like code are prose


# -- the method -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gauge:
    """A recommended preset. `signals` are the parts of `why`, which is one line of ≤ 120 characters."""

    preset: str
    score: float
    signals: tuple[str, ...]
    why: str


class _Signal(NamedTuple):
    """What counted: its points, how `why` says it, and how it says it when the line would get too long."""

    points: float
    text: str
    short: str


class _Reading(NamedTuple):
    """A problem as gauge sees it: counts, and the markers found in the prose."""

    words: int  # as a person counts them
    different: int  # different words, without those that only say "this is small"
    questions: int
    open: tuple[str, ...]
    fields: tuple[str, ...]
    wide: tuple[str, ...]
    narrow: tuple[str, ...]
    code: bool
    cut: bool
    foreign: bool


def gauge(problem: str) -> Gauge:
    """The preset for a problem, and why (seed 004: "classify complexity").

    Pure and total: any text has an answer. Of a long text only the first 6,000 and the last 2,000 characters
    are read, which `why` then says. English keywords; other languages are judged by length and question
    marks alone. Pasted code is left out: its words are not the problem's.
    """
    reading = _read(problem)
    signals = [signal for signal in _signals(reading) if signal is not None]
    score = max(0.0, sum(signal.points for signal in signals))
    if not reading.wide or len(reading.fields) < FULL_NEEDS_FIELDS:
        score = min(score, BELOW_FULL)
    preset = [name for name, least in THRESHOLDS.items() if score >= least][-1]
    texts = _fitting(preset, signals)
    return Gauge(preset, score, texts, f"{preset}: {', '.join(texts)}")


def _signals(reading: _Reading) -> list[_Signal | None]:
    """Every signal in the order `why` names them; None for what is not there."""
    length = max((points for least, points in LENGTH.items() if reading.different >= least), default=0.0)
    fields, wide = reading.fields[: len(FIELD_POINTS) - 1], reading.wide[: len(WIDE_POINTS) - 1]
    asked = QUESTION_POINTS[min(reading.questions, len(QUESTION_POINTS) - 1)]
    open_points = OPEN_QUESTION if reading.questions else OPEN_TASK
    narrow = sum(NARROW_POINTS[label] for label in reading.narrow)
    limit = f"only {READ_START + READ_END:,} characters read"
    return [
        _signal(True, length, _count(reading.words, "word")),
        _signal(reading.cut, 0.0, limit, "only partly read"),
        _signal(reading.questions, asked, _count(reading.questions, "question")),
        _signal(fields, FIELD_POINTS[len(fields)], " + ".join(fields), _count(len(fields), "field")),
        _signal(reading.open, open_points, "".join(reading.open[:1]), "open task"),
        _signal(wide, WIDE_POINTS[len(wide)], " + ".join(wide), "wide scope"),
        _signal(reading.narrow, narrow, " + ".join(reading.narrow), "narrow scope"),
        _signal(reading.foreign, NO_KNOWN_WORD, "no known word"),
        _signal(reading.code, 0.0, "code left out"),
    ]


def _signal(there: object, points: float, text: str, short: str = "") -> _Signal | None:
    return _Signal(points, text, short or text) if there else None


def _fitting(preset: str, signals: list[_Signal]) -> tuple[str, ...]:
    """The signals' texts, the last ones shortened as far as the length of `why` demands."""
    texts = [signal.text for signal in signals]
    for position in reversed(range(len(texts))):
        if len(f"{preset}: {', '.join(texts)}") <= WHY_LIMIT:
            break
        texts[position] = signals[position].short
    return tuple(texts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _read(problem: str) -> _Reading:
    """Count words and question marks and find the markers, in the prose of what is read."""
    text, cut = _window(problem)
    prose, code = _without_code(text)
    tokens = _WORD.findall(prose.casefold())
    # Two blanks between words, so that neighbouring matches do not share one.
    line = f" {'  '.join(tokens)} "
    narrow, narrow_words = _find("narrow", line)
    open_tasks, fields, wide = (_find(table, line)[0] for table in ("open", "fields", "wide"))
    vocabulary = set(tokens)
    # Scripts without blanks have about one word per different sign.
    signs = [sign for sign in set(prose) if any(low <= sign <= high for low, high in _UNSPACED)]
    different = len(vocabulary - narrow_words) + len(signs)
    english = bool(open_tasks or fields or wide or narrow) or not vocabulary.isdisjoint(ENGLISH.split())
    return _Reading(
        words=len(prose.split()),
        different=different,
        questions=len(_QUESTION_MARK.findall(prose)),
        open=open_tasks,
        fields=fields,
        wide=wide,
        narrow=narrow,
        code=code,
        cut=cut,
        foreign=different >= FOREIGN_WORDS and not english,
    )


def _window(problem: str) -> tuple[str, bool]:
    """What is read of a problem, and whether that is less than all of it."""
    if len(problem) <= READ_START + READ_END:
        return problem, False
    # A fence that opens or closes in what is left out must not turn the prose after it into code.
    fence = "\n```\n" if problem.count("```", READ_START, len(problem) - READ_END) % 2 else "\n"
    return problem[:READ_START] + fence + problem[-READ_END:], True


def _without_code(text: str) -> tuple[str, bool]:
    """The prose of a text, and whether there was code: fenced, or lines that look like it."""
    pieces = text.split("```")
    lines = "\n".join(pieces[::2]).splitlines()
    code: set[int] = set()
    for number, line in enumerate(lines):
        if _is_code(line) or (number - 1 in code and line.startswith(_INDENT)):
            code.add(number)
    if len(code) < _CODE_LINES:
        code = set()
    prose = "\n".join(line for number, line in enumerate(lines) if number not in code)
    return prose, bool(code) or any(piece.strip() for piece in pieces[1::2])


def _is_code(line: str) -> bool:
    bare = line.strip()
    if _CODE_START.match(bare) or bare.endswith(_CODE_ENDS):
        return True
    return any(sign in bare for sign in _CODE_SIGNS) and (bare.endswith(";") or line.startswith(_INDENT))


def _find(name: str, line: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """The labels of one table that a line of words matches, and the words of the patterns that did."""
    labels: dict[str, None] = {}
    words: set[str] = set()
    for label, needle in _needles()[name]:
        if needle in line:
            labels[label] = None
            words.update(needle.split())
    return tuple(labels), frozenset(words)


@cache
def _needles() -> dict[str, list[tuple[str, str]]]:
    """Per table its labels with their patterns as strings to look for; built at the first use."""
    tables = {"open": OPEN, "fields": FIELDS, "wide": WIDE, "narrow": NARROW}
    return {
        name: [(label, _needle(pattern)) for label, row in table.items() for pattern in row.split(",")]
        for name, table in tables.items()
    }


def _needle(pattern: str) -> str:
    """` word  word ` for whole words, ` word` for a pattern that ends in `*`."""
    spaced = " " + "  ".join(pattern.split())
    return spaced[:-1] if spaced.endswith("*") else spaced + " "
