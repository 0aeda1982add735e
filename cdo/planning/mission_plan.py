"""Plans a mission: its team, the model of each agent, and an estimate of its cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdo.content.library import Library
from cdo.content.schemas import Convergence, Preset
from cdo.core.errors import UsageError
from cdo.core.exchange import Usage
from cdo.core.formatting import pluralise
from cdo.core.mission_names import CHAIR, ENVOY, MODE, WATCHDOG, operatives
from cdo.core.people import HUMAN
from cdo.planning.estimate import LOCAL_PACE, PACE, Range
from cdo.planning.mission_crew import Crew, Kernel
from cdo.planning.plan import Plan
from cdo.planning.plan_builder import TOPIC
from cdo.providers.models import ModelSpec

KERNEL = "engine/cabal-kernel"
OPERATIVES = "operatives"
RULES, REPLY = 1500, 900  # tokens of a step's rules and of its reply, for the estimate
FULL = 3000  # and of the further content of a step once the mission is under way
WRITTEN, ALONE = (
    6,
    1500,
)  # products that an operative writes in a busy round; tokens of what an inspection of one shows
LOOKS, WISH, LOOKED = 2, 100, 1200  # rounds of tools for one reply, if it looks; tokens of what is asked and answered


def kernel(library: Library) -> Kernel:
    """Return the default limits of a mission."""
    return library.read(KERNEL, Kernel)[0]


def most_files(crew: Crew, library: Library) -> int:
    """Return the most tokens of files that a preset for the mission's Decisions shows of a repository."""
    return max((library.read(f"presets/{name}", Preset)[0].context_tokens for name in crew.presets), default=0)


def given(seats: Sequence[str]) -> dict[str, str]:
    """Parse the seats that were given as ROLE=MODEL; raise `UsageError`."""
    found: dict[str, str] = {}
    for text in seats:
        role, equals, model = text.partition("=")
        if text.strip().startswith(HUMAN):
            raise UsageError(
                "A person has no seat in a mission.",
                "Its team asks you when only you can tell, and --sign-off has you judge the result.",
            )
        if not (equals and role.strip() and model.strip()):
            raise UsageError(
                f"`{text[:60]}` is not a seat.", "Give it as ROLE=MODEL: --seat watchdog=openai/gpt-4.1."
            )
        found[role.strip()] = model.strip()
    return found


def seats(
    count: int, models: Sequence[str], chosen: Mapping[str, str], vendors: Mapping[str, str], other: str = ""
) -> dict[str, str]:
    """Return the model of each agent: those `chosen` by role or id, then `models` in turn.

    The watchdog gets a model of another vendor than the operatives' from `models` or `other`, if there is one. Raises
    `UsageError` for a role that is not in the team.
    """
    team = operatives(count)
    agents = (CHAIR, *team, WATCHDOG, ENVOY)
    names = {agent.partition("-")[0]: agent for agent in (CHAIR, WATCHDOG, ENVOY)}
    found: dict[str, str] = {}
    for role, model in chosen.items():
        if role == OPERATIVES:
            found |= {agent: found.get(agent, model) for agent in team}
        elif (agent := names.get(role, role)) in agents:
            found[agent] = model
        else:
            roles = ", ".join((*names, OPERATIVES, *team))
            raise UsageError(f"Nobody in the team is called `{role[:40]}`.", f"The seats are {roles}.")
    found = {CHAIR: models[0], ENVOY: models[0], **found}
    for number, agent in enumerate(team):
        found.setdefault(agent, models[number % len(models)])
    same = {vendors.get(found[agent], "") for agent in team}
    strange = [name for name in (*models, *filter(None, [other])) if vendors.get(name, "") not in same | {""}]
    found.setdefault(WATCHDOG, strange[0] if strange else models[0])
    return {agent: found[agent] for agent in agents}


def remark(seated: Mapping[str, str], vendors: Mapping[str, str]) -> str:
    """Return a warning if the watchdog may share a vendor with an operative, else "". A script has no vendor."""
    if seated[WATCHDOG].startswith("scripted:"):
        return ""
    watchdog = vendors.get(seated[WATCHDOG], "")
    same = {vendors.get(model, "") for agent, model in seated.items() if agent.startswith("operative")}
    if watchdog and watchdog not in same:
        return ""
    return "The watchdog is of the same vendor as an operative: models of one maker share their errors."


def plan(
    request: str,
    crew: Crew,
    specs: Sequence[ModelSpec],
    library: Library,
    remarks: Sequence[str] = (),
    root: str = "",
    looks: tuple[int, int] | None = None,
) -> Plan:
    """Return the plan of a mission; for a mission, its fields on voices and turns have no meaning.

    The repository is at `root` as seen from the session's folder, "" for none. `looks` is how often models may look
    into it unless the mission's own limits say otherwise; None if no model can.
    """
    base = kernel(library)
    convergence = library.read("engine/convergence", Convergence)[0]
    return Plan(
        preset=MODE,
        why=f"a team of {crew.operatives}, at most {pluralise(crew.rounds, 'round')}",
        mode=MODE,
        width=(1, crew.operatives),
        start=crew.operatives,
        turns=(1, crew.rounds),
        adaptive=False,
        roles=crew.agents,
        known_roles=(),
        models=tuple(dict.fromkeys([crew.seats[CHAIR], *crew.seats.values()])),
        vendors={spec.name: spec.vendor for spec in specs},
        criteria=convergence.criteria,
        bounds=convergence.bounds,
        topic=request[:TOPIC],
        tools=base.looks if looks and all(looks) and all(base.looks) else None,
        root=root,
        context_tokens=base.context_tokens if root else None,
        remarks=tuple(remarks),
        crew=crew,
    )


def estimate(crew: Crew, specs: Sequence[ModelSpec], given: int, looks: tuple[int, int] | None = None) -> Range:
    """Estimate a mission without retries: at best one round of one product and a last plan, at worst all rounds busy.

    `given` counts the tokens of request and context. With `looks`, the longest mission looks into the repository
    before each reply. The watchdog is asked about one product in each call.
    """
    by_name = {spec.name: spec for spec in specs}
    team = operatives(crew.operatives)
    best = [CHAIR, CHAIR, team[0], *team[1:2], WATCHDOG, WATCHDOG, ENVOY, team[0], CHAIR, ENVOY]
    inspections = [WATCHDOG] * (WRITTEN * len(team) + 1)
    worst = [CHAIR, *[*team, CHAIR, *team, *team, *inspections, ENVOY] * crew.rounds]
    spans = []
    for calls, full, reply, most in (
        (best, 0, REPLY // 2, 0),
        (worst, FULL, REPLY * 2, min(LOOKS, looks[1]) if looks else 0),
    ):
        made = []
        for agent in calls:
            spec, alone = by_name[crew.seats[agent]], agent == WATCHDOG
            size = RULES + given + (min(full, ALONE) if alone else full)
            said = min(reply, REPLY) if alone else reply
            last = most if spec.tools and agent != ENVOY else 0
            for number in range(last + 1):
                made.append((spec, Usage(size + number * LOOKED, said if number == last else WISH)))
        costs = [spec.cost(usage) for spec, usage in made]
        known = [cost for cost in costs if cost is not None]
        tokens = sum(usage.input_tokens + usage.output_tokens for _, usage in made)
        spans.append((len(made), tokens, sum(known) if len(known) == len(costs) else None))
    (low, least, cheap), (high, most, dear) = spans
    alone = any(spec.route == "local" for spec in specs)  # answers one at a time
    pace, steps = (LOCAL_PACE, (low, high)) if alone else (PACE, (8, 1 + 6 * crew.rounds))
    return Range(
        calls=(low, high),
        tokens=(least, most),
        cost=None if cheap is None or dear is None else (cheap, dear),
        seconds=(steps[0] * pace[0], steps[1] * pace[1]),
    )
