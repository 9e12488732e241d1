"""The trials of a search, in Optuna's database: what was told to it survives whoever told it."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradtricks.lab.notebooks.schema import read_notebook
from gradtricks.lab.recording import encode
from gradtricks.lab.results.quoting import RecordError, result_from
from gradtricks.lab.runs.planning import Spec, plan_runs, source_digest
from gradtricks.lab.storage.store import Store, StoredRun
from gradtricks.lab.storage.troubles import public
from gradtricks.lab.sweeps.planning import Search
from gradtricks.lab.sweeps.proposals import Proposals

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["SearchError", "Study", "Trial", "TrialError", "study_folder"]

_ABOUT = "gradtricks"  # attribute of a study: digest of what its trials are trials of
_BUSY_S = 60.0  # to wait for another process that writes to the same file


class SearchError(RuntimeError):
    """A search can't be done or continued; what was told until then is kept."""


class TrialError(SearchError):
    """A search ends early, because of what its trials record or because its notebook was edited meanwhile."""


@dataclass(frozen=True)
class Trial:
    """A proposal of Optuna's.

    Attributes:
        number: In the study.
        runs: One for each seed.
    """

    number: int
    runs: tuple[Spec, ...]


class Study:
    """A study, made or opened again.

    Args:
        spec: What is searched.
        store: Where the runs are.

    Raises:
        SearchError: Optuna isn't installed, the database can't be opened, or its trials don't hold any more.
    """

    def __init__(self, spec: Search, store: Store) -> None:
        try:
            import optuna
        except ImportError as error:
            raise SearchError(
                "expected Optuna, which a search asks for parameters; got none; "
                "remedy: pip install 'gradtricks[optuna]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else a line for each trial on stderr
        self._optuna = optuna
        self._state = optuna.trial.TrialState
        self._spec = spec
        self._source = read_notebook(spec.notebook)
        self._proposals = Proposals(spec, optuna)
        self._url = _storage_url(spec, store)
        self._open()
        self._refuse_another_search()
        self._refuse_stale_trials(store)

    def close(self) -> None:
        """Let go of the database."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def unfinished(self) -> list[Trial]:
        """Return the trials that went on when whoever ran them ended; they are to be run again."""
        running = self._trials(self._state.RUNNING)
        for trial in running:
            if not self._is_whole(trial):  # killed between two parameters of a proposal
                self._study.tell(trial.number, state=self._state.FAIL)
        return self._planned(trial for trial in running if self._is_whole(trial))

    def ask(self) -> Trial | None:
        """Return a new proposal; None where there are as many trials as are wanted."""
        # Proposals that were cut short don't count, or what comes after a kill would depend on its moment.
        number = sum(map(self._is_whole, self._study.get_trials(deepcopy=False)))
        if number >= self._spec.optuna.trials:
            return None
        self._study.sampler = self._proposals.sampler(number)
        return self._planned([self._study.ask(self._proposals.distributions())])[0]

    def tell(self, trial: Trial, stored: Sequence[StoredRun]) -> float | None:
        """Say what came out of a trial.

        Args:
            trial: From `ask` or `unfinished`.
            stored: Its finished runs; where one is missing, the trial failed.

        Returns:
            The objective, the mean over seeds; None for a failed trial. NaN fails too.

        Raises:
            TrialError: The runs recorded no such number.
        """
        values = [self._objective(run) for run in stored]
        value = fmean(values) if len(values) == len(trial.runs) else math.nan
        if math.isnan(value):
            self._study.tell(trial.number, state=self._state.FAIL, skip_if_finished=True)
            return None
        self._study.tell(trial.number, value, skip_if_finished=True)
        return value

    def trials(self) -> list[Trial]:
        """Return all trials, in order."""
        return self._planned(trial for trial in self._study.get_trials() if self._is_whole(trial))

    def best(self) -> tuple[Trial, float] | None:
        """Return the best trial and its objective, or None where none has one."""
        told = self._trials(self._state.COMPLETE)
        if not told:
            return None
        sign = 1 if self._spec.optuna.direction == "minimize" else -1
        trial = min(told, key=lambda trial: (sign * trial.values[0], trial.number))
        return self._planned([trial])[0], trial.values[0]

    def _open(self) -> None:
        sqlite = self._url.startswith("sqlite:")
        options = {"connect_args": {"timeout": _BUSY_S}} if sqlite else {}
        try:
            self._storage = self._optuna.storages.RDBStorage(self._url, engine_kwargs=options)
            self._study = self._optuna.create_study(
                storage=self._storage,
                study_name=self._spec.name,
                direction=self._spec.optuna.direction,
                load_if_exists=True,
            )
        except Exception as error:  # of the database's own driver, whichever that is
            raise SearchError(
                f"expected a database for the search at {public(self._url)}; got {type(error).__name__}: "
                f"{str(error).replace(self._url, public(self._url))}; "
                "remedy: mend 'storage' in the sweep file"
            ) from error

    def _refuse_another_search(self) -> None:
        about, there = self._about(), self._study.user_attrs.get(_ABOUT)
        if there is None and not self._study.get_trials(deepcopy=False):
            self._study.set_user_attr(_ABOUT, about)
        elif there != about:
            raise SearchError(
                f"expected trials of the search {self._spec.name!r} as it is now; got trials from before it "
                f"or its notebook was changed; {self._remedy()}"
            )

    def _about(self) -> str:
        """Digest all that a trial's value depends on, but what the runs themselves say that they used."""
        spec = self._spec
        about: Mapping[str, Any] = {
            "source": source_digest(self._source),
            "given": encode(spec.given, "given"),
            "space": {name: encode(axis.model_dump(), name) for name, axis in spec.space.items()},
            "seeds": list(spec.seeds),
            "threads": spec.threads,
            "objective": spec.optuna.objective,
            "direction": spec.optuna.direction,
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _refuse_stale_trials(self, store: Store) -> None:
        told = self._planned(self._trials(self._state.COMPLETE))
        found = store.find_all(run for trial in told for run in trial.runs)
        stale = sum(any(run.request not in found for run in trial.runs) for trial in told)
        if stale:
            raise SearchError(
                f"expected the runs of the search {self._spec.name!r} in the store; those of {stale} of its "
                f"{len(told)} trials are gone, or used other code or libraries than there are now; "
                f"{self._remedy()}"
            )

    def _remedy(self) -> str:
        return f"remedy: give the sweep file another name, or delete the study in {public(self._url)}"

    def _trials(self, *states: Any) -> list["FrozenTrial"]:
        return self._study.get_trials(states=states)

    def _is_whole(self, trial: "FrozenTrial") -> bool:
        return self._proposals.are_whole(trial.params)

    def _planned(self, trials: "Iterable[FrozenTrial | optuna.Trial]") -> list[Trial]:
        givens = {trial.number: self._proposals.givens(trial.params) for trial in trials}
        # All in one go, since the notebook is read each time; trials may propose the same thing twice.
        distinct = {repr(given): given for several in givens.values() for given in several}
        runs = plan_runs(self._spec.notebook, distinct.values(), threads=self._spec.threads)
        if runs and source_digest(runs[0].source) != source_digest(self._source):
            raise TrialError(
                f"expected {self._spec.notebook} to stay as it was when the search began; got another text; "
                "remedy: undo that, or give the sweep file another name"
            )
        planned = {key: replace(run, source=self._source) for key, run in zip(distinct, runs, strict=True)}
        return [
            Trial(number, tuple(planned[repr(given)] for given in several))
            for number, several in givens.items()
        ]

    def _objective(self, stored: StoredRun) -> float:
        name = self._spec.optuna.objective
        try:
            value = result_from({"results": stored.results, "varying": stored.varying}, name)
        except RecordError as error:
            raise TrialError(f"expected {name} among what {stored.title} recorded: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TrialError(f"expected {name} to be a number; {stored.title} recorded {value!r}")
        return float(value)


def study_folder(store: Store) -> Path | None:
    """Make the folder of a store that holds studies.

    Args:
        store: Where the runs are.

    Returns:
        The folder; None where the store is at a URL.

    Raises:
        SearchError: It can't be made.
    """
    if "://" in store.location:
        return None
    folder = Path(store.location) / ".optuna"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SearchError(
            f"expected a folder {folder} for the search; got {error}; remedy: a store that can be written to"
        ) from error
    return folder


def _storage_url(spec: Search, store: Store) -> str:
    if spec.optuna.storage:
        return spec.optuna.storage
    folder = study_folder(store)
    if folder is None:
        raise SearchError(
            f"expected a database for the search, which {public(store.location)} can't hold; got none; "
            "remedy: say 'storage' beside 'objective' in the sweep file, such as sqlite:///search.db"
        )
    return f"sqlite:///{folder.resolve() / spec.name}.db"
