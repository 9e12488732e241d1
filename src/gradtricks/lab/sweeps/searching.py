"""Searches: Optuna proposes parameters, the lab runs them, and the store keeps what a kill mustn't lose."""

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from gradtricks.lab.encoding import encode
from gradtricks.lab.notebooks.schema import ParameterError
from gradtricks.lab.results.quoting import RecordError, result_from
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.many import Interrupted, Run, execute_missing, look_up
from gradtricks.lab.runs.planning import plan_run, plan_runs, source_digest
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.files import Domain, Optuna
from gradtricks.lab.sweeps.sweep import Sweep, freeze

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def search(sweep: Sweep, store: Store, **options: Any) -> tuple[list[Run], list[StoredRun]]:
    """Search for good parameters: as soon as a worker is free, Optuna proposes what it should try next.

    The store's plan of the sweep keeps what was proposed, and its runs what came of that. Interrupted or
    killed, the same call goes on: runs that are finished are told again, the others are done again. A trial
    with a failed run is a failed one, and the search goes on. With one worker the same seed proposes the same
    trials, interrupted or not.

    The other options are those of `gradtricks.lab.runs.many.execute_missing`.

    Returns:
        What came of the runs of all trials, and those of the best trial, one for each seed.

    Raises:
        ParameterError: Optuna isn't installed.
        RunError: Runs don't record the objective, or the notebook was edited meanwhile.
    """
    trials = Trials(sweep, store)
    try:
        execute_missing(trials.more(1), store, then=trials.more, **options)
    except Interrupted:
        raise Interrupted(trials.runs()) from None
    return trials.runs(), trials.best()


class Trials:
    """The trials of a search, those that an earlier one has proposed included, unless it was another one."""

    def __init__(self, sweep: Sweep, store: Store) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ParameterError(
                "expected Optuna, which a search asks for parameters; got none; "
                "remedy: pip install 'gradtricks[optuna]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else a line for each trial on stderr
        self._optuna, self._sweep, self._store = optuna, sweep, store
        self._how = cast(Optuna, sweep.optuna)  # or nobody would search
        self._asked = {name: self._distribution(domain) for name, domain in self._how.parameters.items()}
        self._first = plan_run(sweep.notebook, {}, threads=sweep.threads)  # whose source all runs share
        self._study = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(), direction=self._how.direction
        )
        self._trials: list[list[Run]] = []  # of each what is run for it, once for each seed
        self._going: dict[int, list[Run]] = {}
        self._known: dict[str, Run] = {}
        kept = self._kept()
        self._points = islice(self._quasi_random(), len(kept), None)
        self._added = self._begin(kept)

    def more(self, room: int) -> list[Run]:
        """Tell the study what has ended, and ask it for trials until there is enough to do."""
        added, self._added = self._added, []
        self._tell()
        while len(self._trials) < self._how.trials and self._pending() < room:
            added += self._begin([None])
        return added

    def runs(self) -> list[Run]:
        """Return the runs of all trials, each once however many trials ask for it."""
        return list(dict.fromkeys(chain(*self._trials)))

    def best(self) -> list[StoredRun]:
        """Return what was run for the best trial; nothing where none has an objective."""
        with suppress(ValueError):  # Optuna's word for none
            return [run.stored for run in self._trials[self._study.best_trial.number] if run.stored]
        return []

    def _begin(self, proposals: Sequence[dict[str, Any] | None]) -> list[Run]:
        """Begin trials, proposed before or now; return their runs, but those that are of others too."""
        asked = list(map(self._ask, proposals))
        domains = self._how.parameters
        searched = [{name: domains[name].value(each) for name, each in trial.items()} for trial in asked]
        every = [given | some for some in searched for given in self._sweep.given]
        # All in one go, since the notebook is read each time.
        how: dict[str, Any] = {"threads": self._sweep.threads, "source": self._first.provenance}
        specs = plan_runs(self._sweep.notebook, every, **how)
        if specs and source_digest(specs[0].source) != source_digest(self._first.source):
            raise RunError(
                f"expected {self._sweep.notebook} to stay as it was when the search began; got another text; "
                "remedy: undo that, or begin anew with the same command"
            )
        new = [replace(s, source=self._first.source) for s in specs if s.request not in self._known]
        found = list(dict.fromkeys(look_up(new, self._store, retry_failed=False)))
        self._known |= {run.spec.request: run for run in found}
        runs = iter([self._known[spec.request] for spec in specs])
        trials = [list(islice(runs, len(self._sweep.given))) for _ in asked]
        self._going |= enumerate(trials, len(self._trials))
        self._trials += trials
        grown = replace(self._sweep, specs=tuple(run.spec for run in self.runs()))
        proposed = [trial.params for trial in self._study.get_trials(deepcopy=False)]
        # Before a run begins, so that a kill loses nothing.
        freeze(grown, self._store, search={"proposed": proposed, "digest": self._digest(proposed)})
        self._tell()
        return found

    def _ask(self, proposed: dict[str, Any] | None) -> dict[str, Any]:
        """Have the study begin a trial, and return what it is, by Optuna's names for choices."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            if proposed is None and self._how.sampler == "qmc":
                proposed = next(self._points)
            if proposed:
                self._study.enqueue_trial(proposed)
            else:
                # One that is seeded once would repeat itself after a restart.
                digest = hashlib.sha256(f"{self._how.seed} {len(self._trials)}".encode()).digest()
                samplers = self._optuna.samplers
                kind = samplers.TPESampler if self._how.sampler == "tpe" else samplers.RandomSampler
                self._study.sampler = kind(seed=int.from_bytes(digest[:4], "big"))
            return self._study.ask(self._asked).params

    def _quasi_random(self) -> Iterator[dict[str, Any]]:
        """Yield a sequence from its beginning, in a study of its own: the sampler needs one that was told."""
        sampler = self._optuna.samplers.QMCSampler(scramble=True, seed=self._how.seed)
        study = self._optuna.create_study(sampler=sampler)
        study.tell(study.ask(self._asked), 0.0)  # Optuna draws the first at random
        while True:
            yield study.ask(self._asked).params

    def _pending(self) -> int:
        return sum(run.missing for run in {*chain(*self._going.values())})

    def _tell(self) -> None:
        """Tell what came out: the objective of a trial is the mean of its runs', and NaN is none."""
        for number, runs in list(self._going.items()):
            if any(run.missing for run in runs):
                continue
            found = [run.stored for run in runs]
            value = math.nan if None in found else fmean(self._objective(each) for each in found if each)
            failed = {"state": self._optuna.trial.TrialState.FAIL} if math.isnan(value) else {"values": value}
            self._study.tell(number, **failed)
            del self._going[number]

    def _kept(self) -> list[dict[str, Any]]:
        """Read what was proposed, if it was for this search; whatever else is there begins anew."""
        with suppress(TypeError, KeyError):
            kept = self._store.plan(self._sweep.name)["search"]
            if kept["digest"] == self._digest(kept["proposed"]):
                return kept["proposed"]
        return []

    def _digest(self, proposed: Any) -> str:
        """Digest what was proposed, and what a trial's value depends on but for what runs say they used."""
        how = self._how.model_dump(include={"objective", "direction", "parameters"})
        about = [source_digest(self._first.source), encode([self._sweep.given, how], "optuna"), proposed]
        return hashlib.sha256(json.dumps([*about, self._sweep.threads], sort_keys=True).encode()).hexdigest()

    def _distribution(self, domain: Domain) -> "BaseDistribution":
        made = self._optuna.distributions
        if domain.choices is not None:
            return made.CategoricalDistribution(tuple(domain.named()))
        kind = made.IntDistribution if isinstance(domain.low, int) else made.FloatDistribution
        return kind(domain.low, domain.high, log=domain.log)

    def _objective(self, stored: StoredRun) -> float:
        name = self._how.objective
        try:
            value = result_from({"results": stored.results, "varying": stored.varying}, name)
        except RecordError as error:
            raise RunError(f"expected {name} among what {stored.title} recorded: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RunError(f"expected {name} to be a number; {stored.title} recorded {value!r}")
        return float(value)
