"""Makes the plans of a batch's items, and estimates what all of them may take before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.app import new_run, seats
from cdo.app.batch.items import BatchItem
from cdo.content.library import Library
from cdo.content.schemas import Preset
from cdo.core.errors import ConfigError, UsageError
from cdo.core.formatting import one_line
from cdo.core.usage import estimate_tokens
from cdo.planning.arguments import Invocation
from cdo.planning.estimate import Range, estimate, together
from cdo.planning.plan import Plan
from cdo.planning.plan_builder import PlanEnvironment, make, preset_of
from cdo.planning.settings import Resolved
from cdo.providers.model_names import meant
from cdo.providers.models import ModelSpec, resolve
from cdo.repository.context import Context

ONE, MIXED = "one", "mixed"  # which models an item gets that names none: as its preset says


class _KindOfItem(Struct):
    """The items that have the same preset and models: one of them, how many they are, and their tokens."""

    example: BatchItem
    count: int = 0
    tokens: int = 0


class ItemPlans(Struct):
    """Plans the items of a batch. `preset` is for items that name none (""; the question decides).

    `chosen` are the models of items that name none, by `ONE` and `MIXED`; they are chosen when first needed. Call
    `count` for each item that is to be run, then `look_around`, before plans are made.
    """

    resolved: Resolved
    library: Library
    preset: str = ""
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    specs: dict[str, ModelSpec] = field(default_factory=dict)
    _kinds: dict[tuple[str, tuple[str, ...]], _KindOfItem] = field(default_factory=dict)
    _around: PlanEnvironment = field(default_factory=PlanEnvironment)

    def count(self, item: BatchItem) -> None:
        """Take an item into the estimate; raise `UsageError` if its preset or models cannot be used."""
        wanted = item.preset or self.preset
        if wanted and not self.library.has(f"presets/{wanted}"):
            names = ", ".join(self.library.names("presets"))
            where = f"Line {item.line}: " if item.preset else ""
            raise UsageError(f"{where}`{one_line(wanted, 60)}` is not a preset.", f"Presets are {names}.")
        name, _, preset = preset_of(self._invocation(item), item.question, self.library)
        kind = self._kinds.setdefault((name, self._models(item, preset)), _KindOfItem(item))
        kind.count += 1
        kind.tokens += estimate_tokens(item.question + item.context)

    def look_around(self, *, trust: bool) -> None:
        """Resolve the models of all items that were counted, and find the skills; raise `ConfigError`."""
        for (_, models), kind in self._kinds.items():
            self._require_known(models, kind.example)
        names = list(dict.fromkeys(name for _, models in self._kinds for name in models))
        found = seats.specs(names, self.library, self.resolved.values, os.environ)
        self.specs = {spec.name: spec for spec in found}
        self._around, notes = new_run.environment(self.resolved, found, self.library, None, trust_all=trust)
        self.notes += notes

    def _require_known(self, names: Sequence[str], item: BatchItem) -> None:
        """Raise `ConfigError` with the line of an item that names a model which cannot be used."""
        try:
            for name in names if item.models else ():
                resolve(name, self.library, self.resolved.values.prices, os.environ)
        except ConfigError as error:
            raise ConfigError(f"Line {item.line}: {error.message}", error.hint) from None

    def _models(self, item: BatchItem, preset: Preset) -> tuple[str, ...]:
        """Return the names of an item's models, the first one the default; `preset` is the item's."""
        if item.models:
            return meant(item.models, self.library)
        kind = MIXED if preset.mixed else ONE
        if kind not in self.chosen:
            found = new_run.models_of(self.resolved, self.library, every=False, mixed=preset.mixed)
            self.chosen[kind] = found.names
            self.notes += found.notes()
        return self.chosen[kind]

    def plan(self, item: BatchItem) -> Plan:
        """Return the plan of an item. Nothing of a batch goes into beads: it would be an epic for each item."""
        names = self._models(item, preset_of(self._invocation(item), item.question, self.library)[2])
        vendors = {name: self.specs[name].vendor for name in names if name in self.specs}
        mixed = not item.models and self.resolved.values.model == () and len(names) > 1
        around = replace(self._around, vendors=vendors, mixed=mixed)
        plan = make(self._invocation(item), item.question, self.resolved, self.library, names, around)
        return replace(plan, bd=False)

    def span(self) -> Range:
        """Return the estimate of all items that were counted."""
        return together((self._estimate(kind), kind.count) for kind in self._kinds.values())

    def kinds(self) -> list[tuple[str, Sequence[str], int]]:
        """Return which presets with which models the counted items have, and how many of each there are."""
        return [(preset, models, kind.count) for (preset, models), kind in self._kinds.items()]

    def _invocation(self, item: BatchItem) -> Invocation:
        return Invocation(item.preset or self.preset or None, (), None, None, item.question)

    def _estimate(self, kind: _KindOfItem) -> Range:
        plan = self.plan(kind.example)
        return estimate(plan, [self.specs[name] for name in plan.models], round(kind.tokens / kind.count))


def files_of(item: BatchItem) -> Mapping[str, str]:
    """Return the first files of an item's session: what is asked, and the context of its row."""
    context = f"# Context\n\n{item.context}\n" if item.context else Context((), (), 0).markdown()
    return {"00-input.md": f"{item.question}\n", "00-context.md": context}
