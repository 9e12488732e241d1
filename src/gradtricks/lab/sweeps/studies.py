"""The trials of a search, in Optuna's database: what was told to it survives whoever told it."""

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from gradtricks.lab.encoding import encode
from gradtricks.lab.notebooks.schema import ParameterError, read_notebook
from gradtricks.lab.results.quoting import RecordError, result_from
from gradtricks.lab.runs.execution import RunError
from gradtricks.lab.runs.planning import Spec, plan_runs, source_digest
from gradtricks.lab.storage.places import explained, is_url, public
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.sweeps.files import Domain, Optuna
from gradtricks.lab.sweeps.sweep import Sweep

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_BUSY_S = 60.0  # to wait for another process that writes to the same file

Trials = dict[int, tuple[Spec, ...]]  # by number, what is to be run for each, once for each seed


class Study:
    """The study of a search, made or opened again; a search that was changed has another one.

    A ParameterError says that Optuna isn't installed, that the database can't be opened, or that the runs of
    its trials are gone.
    """

    def __init__(self, sweep: Sweep, store: Store) -> None:
        try:
            import optuna
        except ImportError as error:
            raise ParameterError(
                "expected Optuna, which a search asks for parameters; got none; "
                "remedy: pip install 'gradtricks[optuna]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else a line for each trial on stderr
        self._optuna, self._state = optuna, optuna.trial.TrialState
        self._sweep, self._how = sweep, cast(Optuna, sweep.optuna)  # or nobody would search
        self._domains = self._how.parameters
        self._asked = {name: self._distribution(domain) for name, domain in self._domains.items()}
        self._sequence, self._points = self._quasi_random(), list[dict[str, Any]]()
        self._source = read_notebook(sweep.notebook)
        self._url = self._how.storage or _beside(sweep, store)
        self._open()
        self._refuse_stale_trials(store)

    def close(self) -> None:
        """Let go of the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def unfinished(self) -> Trials:
        """Return the trials that went on when whoever ran them ended; they are to be run again."""
        running = self._study.get_trials(states=[self._state.RUNNING])
        for trial in running:
            if not self._is_whole(trial):  # killed between two parameters of a proposal
                self._study.tell(trial.number, state=self._state.FAIL)
        return self._planned(running)

    def ask(self) -> Trials:
        """Return a new proposal; nothing where there are as many trials as are wanted."""
        # Proposals that were cut short don't count, or what comes after a kill would depend on its moment.
        number = sum(map(self._is_whole, self._study.get_trials(deepcopy=False)))
        if number >= self._how.trials:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._sampler(number)
        return self._planned([self._study.ask(self._asked)])

    def tell(self, number: int, runs: Sequence[StoredRun | None]) -> None:
        """Say what came out of a trial's runs: its objective is their mean, and NaN is none.

        Where a run failed, which is None, the trial failed too. A RunError says that one recorded no such
        number.
        """
        value = math.nan if None in runs else fmean(self._objective(run) for run in runs if run)
        failed = {"state": self._state.FAIL} if math.isnan(value) else {"values": value}
        self._study.tell(number, **failed, skip_if_finished=True)

    def trials(self) -> Trials:
        """Return all trials, in order."""
        return self._planned(self._study.get_trials())

    def best(self) -> tuple[Spec, ...]:
        """Return what was run for the best trial; nothing where none has an objective."""
        try:
            best = self._study.best_trial
        except ValueError:  # Optuna's word for none
            return ()
        return self._planned([best])[best.number]

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        """Return what proposes a trial, the same whatever went before a restart."""
        samplers = self._optuna.samplers
        if self._how.sampler == "qmc":
            while len(self._points) <= number:
                self._points.append(next(self._sequence))
            return samplers.PartialFixedSampler(self._points[number], samplers.RandomSampler())
        # One that is seeded once would repeat itself.
        digest = hashlib.sha256(f"{self._how.seed} {number}".encode()).digest()
        kind = samplers.TPESampler if self._how.sampler == "tpe" else samplers.RandomSampler
        return kind(seed=int.from_bytes(digest[:4], "big"))

    def _quasi_random(self) -> Iterator[dict[str, Any]]:
        """Yield a sequence from its beginning: the study in the database would miss points after kills."""
        sampler = self._optuna.samplers.QMCSampler(scramble=True, seed=self._how.seed)
        study = self._optuna.create_study(sampler=sampler)
        study.tell(study.ask(self._asked), 0.0)  # Optuna draws the first at random
        while True:
            yield study.ask(self._asked).params

    def _open(self) -> None:
        # All that a trial's value depends on, but what the runs themselves say that they used.
        how = self._how.model_dump(include={"objective", "direction", "parameters"})
        about = [source_digest(self._source), encode([self._sweep.given, how], "optuna"), self._sweep.threads]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        sqlite = self._url.startswith("sqlite:")
        options = {"connect_args": {"timeout": _BUSY_S}} if sqlite else {}
        try:
            self._storage = self._optuna.storages.RDBStorage(self._url, engine_kwargs=options)
            self._study = self._optuna.create_study(
                storage=self._storage,
                study_name=f"{self._sweep.name}-{digest[:12]}",
                direction=self._how.direction,
                load_if_exists=True,
            )
        except Exception as error:  # of the database's own driver, whichever that is
            raise ParameterError(
                f"expected a database for the search at {public(self._url)}; got {type(error).__name__}: "
                f"{str(error).replace(self._url, public(self._url))}; "
                "remedy: mend 'storage' in the sweep file"
            ) from error

    def _refuse_stale_trials(self, store: Store) -> None:
        told = self._planned(self._study.get_trials(states=[self._state.COMPLETE]))
        found = store.find_all(spec for specs in told.values() for spec in specs)
        stale = sum(any(spec.request not in found for spec in specs) for specs in told.values())
        if stale:
            raise ParameterError(
                f"expected the runs of the search {self._sweep.name!r} in the store; those of {stale} of its "
                f"{len(told)} trials are gone, or used other code or libraries than there are now; "
                f"remedy: give the sweep file another name, or delete the study in {public(self._url)}"
            )

    def _is_whole(self, trial: "FrozenTrial | optuna.Trial") -> bool:
        """Say whether every parameter has been proposed; a kill may come in between."""
        return trial.params.keys() == self._domains.keys()

    def _planned(self, trials: "Iterable[FrozenTrial | optuna.Trial]") -> Trials:
        givens = {}
        for trial in filter(self._is_whole, trials):
            searched = {name: self._domains[name].value(each) for name, each in trial.params.items()}
            givens[trial.number] = [given | searched for given in self._sweep.given]
        # All in one go, since the notebook is read each time.
        every = [given for several in givens.values() for given in several]
        specs = plan_runs(self._sweep.notebook, every, threads=self._sweep.threads)
        if specs and source_digest(specs[0].source) != source_digest(self._source):
            raise RunError(
                f"expected {self._sweep.notebook} to stay as it was when the search began; got another text; "
                "remedy: undo that, or begin anew with the same command"
            )
        planned = (replace(spec, source=self._source) for spec in specs)
        return {number: tuple(islice(planned, len(several))) for number, several in givens.items()}

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


def study_folder(store: Store) -> Path | None:
    """Make the folder of a store that holds studies; None where the store is at a URL."""
    if is_url(store.location):
        return None
    folder = Path(store.location) / ".optuna"
    with explained(store.location):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _beside(sweep: Sweep, store: Store) -> str:
    folder = study_folder(store)
    if folder is None:
        raise ParameterError(
            f"expected a database for the search, which {public(store.location)} can't hold; got none; "
            "remedy: say 'storage' beside 'objective' in the sweep file, such as sqlite:///search.db"
        )
    return f"sqlite:///{folder.resolve() / sweep.name}.db"
