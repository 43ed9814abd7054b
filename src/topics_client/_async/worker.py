"""A worker that calls a function with the jobs of a queue, several at a time."""

from typing import TYPE_CHECKING

from topics_client._async.net import Bell, Crew, Flag, Interrupted, Lock, join, spawn, stopped_by_signal
from topics_client.errors import ClientClosed, ClientError
from topics_client.requests import A, Request
from topics_client.retry import may_try_again
from topics_client.system import logger
from topics_client.worker_state import AckOutcome, Idling, RetryJob, WorkerPlan, WorkerState
from topics_protocol.records import Job

if TYPE_CHECKING:
    from topics_client._async.client import AsyncClient

_TRIES_S = 1.0
"""How long a claim is tried before the worker looks up."""


class AsyncWorker:
    """Works on a queue until it is stopped. Made by the `worker` of a client."""

    def __init__(self, client: "AsyncClient", plan: WorkerPlan) -> None:
        self._client = client
        self._plan = plan
        self._state = WorkerState(plan, client._session.entropy)
        self._stopping = False
        self._room = Bell()
        # Guards the state and the reports about it: jobs end concurrently.
        self._lock = Lock()
        self._sending_outcomes = False

    @property
    def node(self) -> str:
        """The worker's name, as leases show it."""
        return self._state.node

    def stop(self) -> None:
        """Lets `run` return once the jobs under way are done. A signal handler may call it; of a worker in threads any
        thread may, of one in tasks only that of its event loop.
        """
        self._stopping = True
        self._room.ring()

    async def run(self) -> None:
        """Works until `stop` is called. Raises permanent errors, such as `TopicNotFound`.

        Running jobs are always finished first; only the cancellation of its task cancels them and returns them
        immediately. In the main thread Ctrl-C calls `stop`, and a second one is raised. The worker waits for a server
        that restarts, throttles or cannot be reached.
        """
        over = Flag()
        keeper = spawn(self._keep, over)
        crew = Crew(self._plan.concurrency, self.node)
        try:
            with stopped_by_signal(self.stop):
                await self._work(crew)
                await crew.join()
        except Interrupted:
            crew.cancel()
            raise
        finally:
            self._stopping = True
            await crew.join()
            over.set()
            await join(keeper)

    async def _work(self, crew: Crew) -> None:
        idling = Idling(self._plan)
        while await self._wait_for_room():
            answer = await self._patiently(self._state.claim())
            if answer is None:
                return
            async with self._lock:
                jobs = self._state.take(answer)
            for job in jobs:
                crew.start(self._run, job)
            request = idling.after(answer)
            if request is not None:
                looked = await self._patiently(request)
                if looked is not None:
                    idling.looked(looked)

    async def _wait_for_room(self) -> bool:
        while not self._stopping:
            if self._state.free > 0:
                return True
            await self._room.wait()
        return False

    async def _patiently(self, request: Request[A]) -> A | None:
        """Sends a request until it is answered; None when the worker is stopped meanwhile."""
        retry = self._client._session.patient(_TRIES_S)
        while not self._stopping:
            try:
                return await self._client._send(request, retry, lambda: self._stopping)
            except ClientError as error:
                if self._stopping and isinstance(error, ClientClosed):
                    return None
                if not may_try_again(error, repeatable=True):
                    raise
                logger(__name__).warning(
                    "topic %s: worker %s is waiting for the server: %s", self._plan.topic, self.node, error
                )
        return None

    async def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            if self._stopping:
                # Claimed and not started: it is released for other workers immediately.
                raise RetryJob(0.0)
            await self._plan.handle(job)
        except Interrupted:
            error = RetryJob(0.0)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, RetryJob):
                logger(__name__).warning(
                    "topic %s: job %d failed in delivery %d: %r", self._plan.topic, job.seq, job.deliveries, raised,
                    exc_info=raised,
                )  # fmt: skip
        async with self._lock:
            if error is None:
                self._state.succeeded(job)
            else:
                self._state.failed(job, error)
        await self._send_outcomes()

    async def _send_outcomes(self) -> None:
        """Acknowledges and returns finished jobs, all that finish meanwhile with one request."""
        async with self._lock:
            if self._sending_outcomes:
                return
            self._sending_outcomes = True
        try:
            while True:
                async with self._lock:
                    todo = self._state.settlement()
                    if not todo:
                        self._sending_outcomes = False
                        return
                for request, jobs in todo:
                    outcome: AckOutcome | ClientError
                    try:
                        outcome = await self._client.send(request)
                    except ClientError as error:
                        outcome = error
                    async with self._lock:
                        self._state.settled(jobs, outcome)
                    self._room.ring()
        except BaseException:
            self._sending_outcomes = False
            raise

    async def _keep(self, over: Flag) -> None:
        """Extends the leases of everything under way, until the worker is done."""
        every_s = self._plan.extend_every_s
        while not await over.wait(every_s):
            async with self._lock:
                request = self._state.extension()
            if request is None:
                continue
            try:
                await self._client._send(request, self._client._session.patient(every_s), over.is_set)
            except ClientError as error:
                logger(__name__).warning(
                    "topic %s: extending the leases of %s failed: %s", self._plan.topic, self.node, error
                )
