"""The coordinator of a tuner: it sends the trials of searches to workers and puts their outcomes into the store.

Each measuring worker is a lane. A lane works on one problem at a time and keeps its operands. The trials of that
problem and of the next one are compiled ahead on other cores. A trial that hangs or dies costs a worker's child
process, see `child_process`. Dask does not notice, and a new child starts in the time of an import.
"""

import datetime
import hashlib
import math
import queue
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from distributed import Client, Future

from tritonmm.autotune.measuring.environment import Environment
from tritonmm.autotune.measuring.trial import Trial, problem_json
from tritonmm.autotune.tuner import worker
from tritonmm.autotune.tuner.child_process import START_SECONDS
from tritonmm.autotune.tuner.leases import LEASE, Leases
from tritonmm.autotune.tuner.search import Search
from tritonmm.autotune.tuner.store import Store, StoreError
from tritonmm.autotune.tuner.worker import Setup
from tritonmm.config import Config
from tritonmm.gpu import Gpu

AHEAD = 64
"""Trials of a problem that are leased and not yet measured."""

DEPTH = 2
"""Tasks of a lane: one that runs and one that waits."""

TASK_SECONDS = 0.5
"""Seconds that the trials of one task take together. A task costs ten milliseconds."""

KILLS = 2
"""Children or workers that a config may kill; then it is not tried again."""

LOST_SECONDS = 10.0
"""How long the last answers of a finished task may take to arrive."""

GONE_SECONDS = 60.0
"""How long a lane waits for a lost worker before other lanes take its problems."""


class EngineError(Exception):
    """Nothing can measure; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds, after which a compilation, or the check and measurement of a trial, is killed."""

    compile: float = 120.0
    run: float = 60.0


@dataclass(eq=False)
class _Item:
    """A trial in progress. losses: workers that died while they ran it."""

    job: "_Job"
    config: Config
    regime: str
    lease: str
    losses: int = 0
    compiling: bool = False


@dataclass(eq=False)
class _Job:
    """A search and the state of its current rung.

    asked: configs that were not yet looked up in the store.
    compilable, measurable: items that wait to be compiled or measured.
    elsewhere: items that another tuner has leased.
    open: all items that are not yet trials.
    """

    search: Search
    asked: deque[Config] = field(default_factory=deque)
    compilable: deque[_Item] = field(default_factory=deque)
    measurable: deque[_Item] = field(default_factory=deque)
    elsewhere: list[_Item] = field(default_factory=list)
    open: set[_Item] = field(default_factory=set)
    trials: list[Trial] = field(default_factory=list)
    regime: str = ""

    def __post_init__(self):
        self.questions = self.search.trials()
        self._ask(None)

    def go_on(self) -> None:
        """Goes to the next rung."""
        self._ask(self.trials)

    def _ask(self, answer: list[Trial] | None) -> None:
        try:
            self.regime, configs = self.questions.send(answer)
            self.asked.extend(configs)
            self.trials = []
        except StopIteration:
            pass  # the search is finished


@dataclass(eq=False)
class _Lane:
    """A measuring worker.

    address: None while the worker is lost, since the time `gone`.
    seconds: average time of a trial there.
    """

    name: str
    host: str
    address: str | None
    jobs: list[_Job] = field(default_factory=list)
    seconds: float = TASK_SECONDS
    gone: float = 0.0


@dataclass(eq=False)
class _Task:
    """Requests that a worker was sent. left: items without an answer, by position. ended: when the task finished."""

    lane: _Lane
    compiles: bool
    left: dict[int, _Item]
    future: Future
    ended: float = math.inf


class Engine:
    """Runs searches on a cluster's workers, into a store.

    leases: leases on the trials of `store`.

    Raises EngineError if the workers cannot measure, or differ in GPU or versions. `gpu` and `environment` are the
    workers'.
    """

    def __init__(self, client: Client, store: Store, leases: Leases, setup: Setup, limits: Limits | None = None):
        self._client, self._store, self._leases, self._setup = client, store, leases, setup
        self._address = client.scheduler.address
        self._limits = limits or Limits()
        # Answers arrive as events (key of the task, position of the request, answer) instead of task results: a result
        # stays on the worker until it is fetched, and Dask repeats a task if its result was lost with the worker.
        # The end of a task is the event (key, None, None).
        self._inbox: queue.SimpleQueue[tuple[str, int | None, dict | None]] = queue.SimpleQueue()
        self._topic = f"tritonmm-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, lambda event: self._inbox.put(tuple(event[1])))
        self._tasks: dict[str, _Task] = {}
        self._released: list[str] = []
        self._refreshed = self._maintained = time.monotonic()
        workers = client.scheduler_info(n_workers=-1)["workers"]
        self.lanes = [
            _Lane(str(found["name"]), found["host"], address)
            for address, found in sorted(workers.items(), key=lambda each: str(each[1]["name"]))
            if found["resources"].get("gpu")
        ]
        if not self.lanes:
            raise EngineError('no worker has the resource "gpu"')
        self._compilers = Counter()
        for found in workers.values():
            self._compilers[found["host"]] += int(found["resources"].get("compile", 0))
        about = self._about()
        self.source, self._regime = about["source"], about["regime"]
        self.gpu = Gpu(**about["gpu"])
        self.environment = Environment(**about["environment"])
        self._kills = Counter(store.kills(self.environment))

    def run(self, searches: Iterable[Search], deadline: float = math.inf) -> Iterator[tuple[Trial, bool]]:
        """Yields every trial that the searches ask for as soon as it is known, and whether it was run now.

        A trial is in the store before it is yielded. No trial is begun after `deadline`, in `time.monotonic` seconds;
        unfinished searches then stay unfinished. Raises StoreError, and EngineError if all workers or their scheduler
        are gone.
        """
        try:
            yield from self._run(deque(searches), deadline)
        except (EngineError, StoreError):
            raise
        except Exception as error:
            if self._client.status == "running":
                raise
            raise EngineError(self._gone()) from error  # Dask raises various errors without its scheduler

    def _run(self, waiting: deque[Search], deadline: float) -> Iterator[tuple[Trial, bool]]:
        while True:
            late = time.monotonic() >= deadline
            if not late:
                yield from self._assign(waiting)
                self._submit()
            busy = any(not task.compiles for task in self._tasks.values())
            if not busy and (late or not (waiting or any(lane.jobs for lane in self.lanes))):
                break
            yield from self._collect()
            yield from self._maintain()
        for lane in self.lanes:
            for job in lane.jobs:
                if not (job.asked or job.open):
                    job.go_on()  # a trial that ended after the deadline may have been its last
                for item in job.open:
                    self._forget(item)
            lane.jobs = []  # another run begins with its own searches
        self._release()

    def _about(self) -> dict:
        """The description that all lanes' sources give, which must be equal."""
        futures = [
            self._client.submit(
                worker.about, self._setup, START_SECONDS, workers=[lane.address], resources={"gpu": 1}, pure=False
            )
            for lane in self.lanes
        ]
        try:
            found = [future.result(timeout=START_SECONDS + 60) for future in futures]
        except Exception as error:  # raised by Dask, or by a worker without this tritonmm
            raise EngineError(f"a worker does not answer: {type(error).__name__}: {error}") from error
        for lane, about in zip(self.lanes, found, strict=True):
            if "source" not in about:
                raise EngineError(f"worker {lane.name} does not measure: {about.get('message') or about.get('error')}")
            here, there = (Environment(**each["environment"]) for each in (found[0], about))
            if here.fingerprint() != there.fingerprint():
                names = f"{self.lanes[0].name} and {lane.name}"
                raise EngineError(f"workers {names} differ and must be tuned separately: {here} and {there}")
        return found[0]

    def _assign(self, waiting: deque[Search]) -> Iterator[tuple[Trial, bool]]:
        """Gives each lane a problem and the next one, and leases enough of their trials."""
        for lane in self.lanes:
            while lane.address and len(lane.jobs) < 2 and waiting:
                lane.jobs.append(_Job(waiting.popleft()))
            for job in list(lane.jobs):
                yield from self._take(job)
                while not (job.asked or job.open or job.search.over):
                    job.go_on()
                    yield from self._take(job)
                if job.search.over:
                    lane.jobs.remove(job)

    def _take(self, job: _Job) -> Iterator[tuple[Trial, bool]]:
        wanted = []
        while job.asked and len(job.compilable) + len(job.measurable) + len(wanted) < AHEAD:
            item = self._item(job, job.asked.popleft())
            trial = self._find(item)
            if trial is not None:
                job.trials.append(trial)
                yield trial, False
            elif self._kills[item.config] >= KILLS:
                yield self._end(item, "failed", f"not tried: this config hung or crashed {KILLS} times before")
            else:
                wanted.append(item)
        yield from self._begin(wanted)

    def _begin(self, wanted: Sequence[_Item]) -> Iterator[tuple[Trial, bool]]:
        """Leases items. Items that others have leased may be finished meanwhile."""
        if not wanted:
            return
        taken = self._leases.take([item.lease for item in wanted])
        for item in wanted:
            job = item.job
            if item.lease not in taken:
                job.open.add(item)
                job.elsewhere.append(item)
            elif (trial := self._find(item)) is not None:
                self._forget(item)
                job.trials.append(trial)
                yield trial, False
            else:
                job.open.add(item)
                (job.compilable if self._setup.compiler else job.measurable).append(item)

    def _item(self, job: _Job, config: Config) -> _Item:
        regime = job.regime if self._regime != "none" else "none"  # modelled times have no regime
        named = (
            problem_json(job.search.problem),
            config.to_json(),
            self.environment.fingerprint(),
            self.source,
            regime,
        )
        return _Item(job, config, regime, hashlib.sha256("\n".join(named).encode()).hexdigest())

    def _find(self, item: _Item) -> Trial | None:
        return self._store.find(item.job.search.problem, item.config, self.environment, self.source, item.regime)

    def _submit(self) -> None:
        for lane in self.lanes:
            for job in lane.jobs:
                self._compile(lane, job)
            self._measure(lane)

    def _compile(self, lane: _Lane, job: _Job) -> None:
        slots = self._compilers[lane.host]
        while job.compilable and not slots:  # no compilers: the lane compiles its own trials
            job.measurable.append(job.compilable.popleft())
        quota = -(-2 * slots // sum(each.host == lane.host for each in self.lanes))
        while job.compilable and len(self._tasks_of(lane, compiles=True)) < quota:
            item = job.compilable.popleft()
            item.compiling = True
            request = self._request(item) | {"gpu": asdict(self.gpu)}
            self._send(lane, [item], worker.compile, [request], self._limits.compile)

    def _measure(self, lane: _Lane) -> None:
        while lane.address and len(tasks := self._tasks_of(lane, compiles=False)) < DEPTH:
            # A trial whose worker died runs alone, so that a second death has one possible cause.
            if any(item.losses for task in tasks for item in task.left.values()):
                return
            # Making operands is slow: the next problem's trials start only if this problem waits for nothing here.
            job = next((job for job in lane.jobs if job.compilable or job.measurable or _compiles(job)), None)
            if job is None or not job.measurable or (job.measurable[0].losses and tasks):
                return
            most = max(1, min(AHEAD // 2, int(TASK_SECONDS / lane.seconds)))
            items = [job.measurable.popleft()]
            while job.measurable and len(items) < most and not (items[0].losses or job.measurable[0].losses):
                items.append(job.measurable.popleft())
            seconds = self._limits.run + (0 if self._compilers[lane.host] else self._limits.compile)
            requests = [self._request(item) | {"regime": item.regime} for item in items]
            self._send(lane, items, worker.measure, requests, seconds)

    def _tasks_of(self, lane: _Lane, compiles: bool) -> list[_Task]:
        return [task for task in self._tasks.values() if task.lane is lane and task.compiles == compiles]

    def _send(self, lane: _Lane, items: list[_Item], function, requests: list[dict], seconds: float) -> None:
        compiles = function is worker.compile
        key = f"{function.__name__}-{uuid.uuid4().hex}"
        future = self._client.submit(
            function, self._setup, requests, seconds, self._topic, key, key=key,
            workers=[lane.host if compiles else lane.address], resources={"compile" if compiles else "gpu": 1},
        )  # fmt: skip
        self._tasks[key] = _Task(lane, compiles, dict(enumerate(items)), future)
        future.add_done_callback(lambda future: self._inbox.put((future.key, None, None)))

    def _request(self, item: _Item) -> dict:
        return {"problem": problem_json(item.job.search.problem), "config": item.config.to_json()}

    def _collect(self) -> Iterator[tuple[Trial, bool]]:
        """Handles one event, or returns after a short wait if there is none."""
        try:
            key, place, answer = self._inbox.get(timeout=0.2)
        except queue.Empty:
            return
        task = self._tasks.get(key)
        if task is None:
            return  # the task was given up
        if place is not None:
            if (item := task.left.pop(place, None)) is not None:
                yield from self._answered(task, item, answer)
        elif task.future.status == "finished":
            task.ended = time.monotonic()
        else:
            yield from self._give_up(key)
        if not task.left and task.ended < math.inf:
            del self._tasks[key]

    def _answered(self, task: _Task, item: _Item, answer: dict) -> Iterator[tuple[Trial, bool]]:
        if task.compiles:
            item.compiling = False
            if "status" in answer:
                yield self._end(item, answer["status"], f"compiling: {answer['message']}")
            else:
                item.job.measurable.append(item)
            return
        task.lane.seconds = (task.lane.seconds + answer["seconds"]) / 2
        if "trial" in answer:
            yield self._keep(item, Trial.from_json(answer["trial"]))
        else:
            yield self._end(item, answer.get("status", "failed"), answer.get("message") or answer["error"])

    def _give_up(self, key: str) -> Iterator[tuple[Trial, bool]]:
        """Gives up a task: its worker died, or its answers are lost."""
        task = self._tasks.pop(key)
        task.future.cancel()
        if not task.compiles:
            task.lane.address, task.lane.gone = None, time.monotonic()
        for item in reversed(task.left.values()):
            yield from self._lose(item, item.job.compilable if task.compiles else item.job.measurable)

    def _lose(self, item: _Item, again: deque[_Item]) -> Iterator[tuple[Trial, bool]]:
        """The item's worker died, for whatever reason. The item runs again, first and alone, unless this was the second
        time."""
        item.compiling = False
        item.losses += 1
        if item.losses >= KILLS:
            yield self._end(item, "crashed", f"{KILLS} workers died while they ran it")
        else:
            again.appendleft(item)

    def _end(self, item: _Item, status: str, message: str) -> tuple[Trial, bool]:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        problem = item.job.search.problem
        return self._keep(item, Trial(problem, item.config, self.source, item.regime, status, now, message=message))

    def _keep(self, item: _Item, trial: Trial) -> tuple[Trial, bool]:
        self._store.add(trial, self.environment)
        self._kills[trial.config] += trial.status in ("hung", "crashed")
        self._forget(item)
        item.job.open.discard(item)
        item.job.trials.append(trial)
        return trial, True

    def _forget(self, item: _Item) -> None:
        self._released.append(item.lease)
        if len(self._released) >= AHEAD:
            self._release()

    def _release(self) -> None:
        self._leases.release(self._released)
        self._released = []

    def _maintain(self) -> Iterator[tuple[Trial, bool]]:
        """Once a second: refreshes leases, looks at other tuners' trials again, and follows workers that come and
        go."""
        now = time.monotonic()
        if now - self._maintained < 1:
            return
        self._maintained = now
        self._release()
        if now - self._refreshed > LEASE / 6:
            self._leases.refresh()
            self._refreshed = now
        for job in (job for lane in self.lanes for job in lane.jobs if job.elsewhere):
            others, job.elsewhere = job.elsewhere, []
            job.open.difference_update(others)
            job.asked.extendleft(item.config for item in reversed(others))
        for key in [key for key, task in self._tasks.items() if now - task.ended > LOST_SECONDS]:
            yield from self._give_up(key)
        yield from self._update_lanes(now)

    def _gone(self) -> str:
        return f"the scheduler at {self._address} is gone; the same command continues with one"

    def _update_lanes(self, now: float) -> Iterator[tuple[Trial, bool]]:
        workers = self._client.scheduler_info(n_workers=-1).get("workers")
        if self._client.status in ("closing", "closed"):
            raise EngineError(self._gone())
        if workers is None:
            return  # the client is reconnecting or closing
        known = {lane.address for lane in self.lanes}
        new = [a for a, found in workers.items() if found["resources"].get("gpu") and a not in known]
        for lane in self.lanes:
            if lane.address and lane.address not in workers:
                lane.address, lane.gone = None, now
            if not lane.address:
                for key in [key for key, task in self._tasks.items() if task.lane is lane and not task.compiles]:
                    yield from self._give_up(key)
                if new:
                    named = [a for a in new if str(workers[a]["name"]) == lane.name] or new
                    lane.address, lane.host = named[0], workers[named[0]]["host"]
                    new.remove(named[0])
        gone = [lane for lane in self.lanes if not lane.address and now - lane.gone > GONE_SECONDS]
        left = [lane for lane in self.lanes if lane.address]
        if gone and not left:
            raise EngineError(f"worker {gone[0].name} is gone, and there is no other")
        for lane in gone:
            min(left, key=lambda each: len(each.jobs)).jobs.extend(lane.jobs)
            lane.jobs = []


def _compiles(job: _Job) -> bool:
    return any(item.compiling for item in job.open)
