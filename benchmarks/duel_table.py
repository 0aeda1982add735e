"""The tables of a duel, made from its folder alone. A positive figure favours cdo, a negative one the single call."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from duel_calls import added, read, save, taken
from duel_texts import CRITERIA, Judgement, judgement, says_enough

from cdo.core.formatting import duration, money, one_line, pluralise
from cdo.core.steps import InvalidReply
from cdo.runner.prompts import CUT
from cdo.session import records as sessions
from cdo.session.reader import SessionFolder

BAR = 0.75  # the share of cases in which cdo is to be preferred: six of eight
JUDGES = ("judge-1", "judge-2")
_SHORTENED = re.compile(re.escape(CUT.strip()).replace(re.escape("{count}"), r"\d+"))


def single_first(case: str, judge: str) -> bool:
    """Whether a judge reads the single call's answer first; which of the two judges does differs between cases."""
    return hashlib.sha256(case.encode()).digest()[0] % 2 == JUDGES.index(judge)


def write(folder: Path) -> str:
    """Write `results.json` and `results.md`; return the latter."""
    held = read(folder / "duel.json") or {}
    cases = [_case(path.parent) for path in sorted(folder.glob("*/case.json"))]
    data = {**held, **_days(folder), "summary": _summary(cases), "cases": cases}
    text = _markdown(data)
    save(folder / "results.json", data)
    save(folder / "results.md", text)
    return text


# -- figures -----------------------------------------------------------------------------------------


def _case(place: Path) -> dict[str, Any]:
    """Everything about one case."""
    about = read(place / "case.json") or {}
    name = str(about["name"])
    said = {judge: found for judge in JUDGES if (found := _judged(place / f"{judge}.json"))}
    data = {
        **{key: about[key] for key in ("name", "kind", "about", "tokens")},
        "complete": len(said) == len(JUDGES),
        **(read(place / "shown.json") or {}),
        "single": taken(place / "single.json"),
        "cdo": _deliberated(place / "cdo", name),
        "judge": added(
            [item for judge in JUDGES for item in (read(place / f"{judge}.json") or {}).get("exchanges", [])]
        ),
    }
    return {**data, **_compared(name, said)} if data["complete"] else data


def _judged(path: Path) -> Judgement | None:
    """The valid judgement of a recorded call, if there is one."""
    for exchange in (read(path) or {}).get("exchanges", []):
        try:
            if "text" in exchange and not exchange["problems"]:
                return judgement(exchange["text"])
        except InvalidReply:  # judged by other rules than today's
            return None
    return None


def _compared(name: str, said: Mapping[str, Judgement]) -> dict[str, Any]:
    """What both orders say, by criterion."""
    orders, reasons = {}, {}
    for judge, judged in said.items():
        first = single_first(name, judge)
        order = "single call first" if first else "cdo first"
        orders[order] = judged.scores("second" if first else "first")
        places = (
            {"first": "the single call", "second": "cdo"} if first else {"first": "cdo", "second": "the single call"}
        )
        reasons[order] = {
            item: f"{_sign(orders[order][item])} ({'; '.join(f'{key}: {value}' for key, value in places.items())}) "
            f"{one_line(getattr(judged, item).reason, 3000)}"
            for item in CRITERIA
        }
    one, other = orders.values()
    scores = {item: fmean((one[item], other[item])) for item in CRITERIA}
    return {
        "scores": scores,
        "orders": orders,
        "preferred": _preferred(scores["overall"]),
        "agree": {item: _preferred(one[item]) == _preferred(other[item]) for item in CRITERIA},
        "reasons": reasons,
    }


def _preferred(score: float) -> str:
    return "cdo" if score > 0 else "single call" if score < 0 else "tie"


def _deliberated(folder: Path, name: str) -> dict[str, Any]:
    """What cdo took, where it stopped and why, and whether its material and its prompts were whole."""
    session = folder / "tmp" / f"{sessions.PREFIX}{name}"
    records = sessions.read_session(session)
    exchanges = [record for record in records if record["kind"] == "exchange"]
    runs = (read(folder / "ended.json") or {"runs": []})["runs"]
    data = {**added(exchanges), "seconds": round(sum(run["seconds"] for run in runs), 3)}
    context, final = session / "00-context.md", session / "FINAL.md"
    if context.exists():
        head = context.read_text("utf-8").partition("\n## ")[0]
        data["material_whole"] = not re.search(r"(?m), cut$|^Left out: ", head)
        data["prompts_shortened"] = any(_SHORTENED.search(json.dumps(item, ensure_ascii=False)) for item in records)
    if final.exists():
        text = final.read_text("utf-8")
        artifact = SessionFolder(session).artifact("FINAL")
        assert artifact is not None
        data |= {key: artifact.own.get(key) for key in ("status", "why", "turns")}
        data |= {"confidence": artifact.meta.get("confidence"), "says_one_call_enough": says_enough(text)}
    return data


def _days(folder: Path) -> dict[str, str]:
    """The first and the last day on which a model was asked."""
    paths = (path for path in folder.glob("*/*.json") if path.name in ("single.json", "judge-1.json", "judge-2.json"))
    days = sorted(item["started"][:10] for path in paths for item in (read(path) or {}).get("exchanges", []))
    return {"from": days[0], "to": days[-1]} if days else {}


def _summary(cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures over all cases that were judged in both orders."""
    whole = [case for case in cases if case["complete"]]
    counts = {who: sum(case["preferred"] == who for case in whole) for who in ("cdo", "single call", "tie")}
    below = [case["name"] for case in whole if case["scores"]["correctness"] < 0]
    return {
        "cases": len(cases),
        "judged": len(whole),
        "preferred": counts,
        "scores": {item: round(fmean(case["scores"][item] for case in whole), 2) for item in CRITERIA}
        if whole
        else {},
        "orders_agree": {item: sum(case["agree"][item] for case in whole) for item in CRITERIA},
        "correctness_below": below,
        "bar_met": bool(whole) and len(whole) == len(cases) and counts["cdo"] >= BAR * len(cases) and not below,
        **{side: _total([case[side] for case in cases]) for side in ("single", "cdo", "judge")},
    }


def _total(sums: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: round(sum(item[key] for item in sums), 3)
        for key in ("calls", "input_tokens", "output_tokens", "seconds")
    }
    unknown = any(item["cost"] is None for item in sums)
    return {**found, "cost": None if unknown else sum(item["cost"] for item in sums)}


# -- words -------------------------------------------------------------------------------------------


def _markdown(data: Mapping[str, Any]) -> str:
    """All tables, for people."""
    summary, cases = data["summary"], data["cases"]
    days = " to ".join(dict.fromkeys((data["from"], data["to"]))) if "from" in data else "no call yet"
    lines = [
        f"# Duel: `cdo {data['preset']}` against one call",
        "",
        f"Answers: {data['model']}. Judge: {data['judge']}. Held: {days}.",
        "",
        *_verdict(summary),
        "",
        "## Scores",
        "",
        "The mean of both orders, from -5 (the single call is far better) to +5 (cdo is far better).",
        "",
        f"| case | kind | {' | '.join(CRITERIA)} | preferred | orders agree |",
        f"|---|---|{'---|' * len(CRITERIA)}---|---|",
        *map(_score_row, cases),
        "",
        "## What it took",
        "",
        "| case | side | calls | tokens read | tokens written | cost | time | words | telling words left |",
        "|---|---|---|---|---|---|---|---|---|",
        *[row for case in cases for row in _cost_rows(case)],
        "",
        "## Where cdo stopped",
        "",
        "| case | turns | status | why | says that one call would have done | material | cut from FINAL.md |",
        "|---|---|---|---|---|---|---|",
        *map(_stop_row, cases),
        "",
        "## The judge's reasons",
        *[line for case in cases for line in _reasons(case)],
    ]
    return "\n".join(lines) + "\n"


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    """The outcome in sentences."""
    counts, agree, judged = summary["preferred"], summary["orders_agree"], summary["judged"]
    lines = [
        f"**cdo was preferred in {counts['cdo']} of {summary['cases']} cases**, the single call in "
        f"{counts['single call']}; {counts['tie']} ended in a tie, {summary['cases'] - judged} not judged yet.",
        "",
        f"- Both orders agree overall in {agree['overall']} of {judged} cases"
        f" ({', '.join(f'{item} {agree[item]}' for item in CRITERIA[:-1])}).",
        f"- Below the single call in correctness: {', '.join(summary['correctness_below']) or 'none'}.",
        f"- The bar (preferred in three of four cases, never below in correctness) is "
        f"{'met' if summary['bar_met'] else 'not met'} on {pluralise(summary['cases'], 'case')}.",
    ]
    if summary["scores"]:
        means = ", ".join(f"{item} {_sign(score)}" for item, score in summary["scores"].items())
        lines.append(f"- Mean of all cases: {means}.")
    took = [f"{side} {money(summary[key]['cost'])} in {summary[key]['calls']} calls" for key, side in _SIDES.items()]
    return [*lines, f"- Cost: {', '.join(took)}."]


_SIDES = {"single": "the single calls", "cdo": "cdo", "judge": "the judge"}


def _score_row(case: Mapping[str, Any]) -> str:
    if not case["complete"]:
        return f"| {case['name']} | {_cell(case['kind'])} |{' |' * len(CRITERIA)} not judged yet | |"
    scores = " | ".join(_sign(case["scores"][item]) for item in CRITERIA)
    agree = "yes" if case["agree"]["overall"] else "no"
    return f"| {case['name']} | {_cell(case['kind'])} | {scores} | {case['preferred']} | {agree} |"


def _cost_rows(case: Mapping[str, Any]) -> list[str]:
    rows = []
    for key, side in (("single", "single call"), ("cdo", "cdo"), ("judge", "judge")):
        took = case[key]
        words = case.get("words", {}).get(key, "")
        tells = ", ".join(f"{word} {count}" for word, count in case.get("tells", {}).get(key, {}).items())
        rows.append(
            f"| {case['name']} | {side} | {took['calls']} | {took['input_tokens']:,} | {took['output_tokens']:,} | "
            f"{money(took['cost'])} | {duration(took['seconds'])} | {words} | {_cell(tells)} |"
        )
    return rows


def _stop_row(case: Mapping[str, Any]) -> str:
    ended = case["cdo"]
    if "status" not in ended:
        return f"| {case['name']} | | not finished yet | | | | |"
    whole = "whole" if ended.get("material_whole") else "cut"
    whole += ", prompts shortened" * bool(ended.get("prompts_shortened"))
    enough = _cell(one_line(ended["says_one_call_enough"], 300)) or "no"
    why, cut = _cell(one_line(ended["why"], 300)), _cell(", ".join(case.get("cut", ())))
    return f"| {case['name']} | {ended['turns']} | {ended['status']} | {why} | {enough} | {whole} | {cut} |"


def _reasons(case: Mapping[str, Any]) -> list[str]:
    lines = ["", f"### {case['name']}", "", str(case["about"])]
    for order, said in case.get("reasons", {}).items():
        lines += ["", f"With {order}:", "", *(f"- {item}: {reason}" for item, reason in said.items())]
    return lines


def _sign(score: float) -> str:
    return f"{score:+g}" if score else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
