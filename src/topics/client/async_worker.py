"""A worker that calls a coroutine function with the jobs of a queue, in tasks."""

import asyncio
import logging
from typing import TYPE_CHECKING

from topics.client.backoff import may_try_again
from topics.client.errors import ClientError
from topics.client.hands import Hands, Plan, RetryJob, Settled
from topics.client.idling import Idling
from topics.client.jobs import Job
from topics.client.requests import A, Request

if TYPE_CHECKING:
    from topics.client.asynchronous import AsyncClient

_TRIES_S = 1.0
"""How long a claim is tried before the worker looks up."""

_log = logging.getLogger(__name__)


class AsyncWorker:
    """Works on a queue until it is stopped. Made by `AsyncClient.worker`."""

    def __init__(self, client: "AsyncClient", plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._hands = Hands(plan, client._dice)
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._settling = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def node(self) -> str:
        """The worker's name, as leases show it."""
        return self._hands.node

    def stop(self) -> None:
        """Lets `run` return once the jobs under way are done. To be called in the loop's thread."""
        self._stopping.set()
        self._room.set()

    async def run(self) -> None:
        """Works until `stop` is called. Raises what makes going on pointless, such as `TopicNotFound`.

        However it ends, the jobs under way are finished first; only when its task is cancelled, they are cancelled
        with it and given back at once. A server that restarts, throttles or cannot be reached is waited for.
        """
        keeper = asyncio.create_task(self._keep())
        try:
            await self._work()
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            self._stopping.set()
            while self._tasks:
                await asyncio.wait(self._tasks)
            keeper.cancel()
            await asyncio.wait([keeper])

    async def _work(self) -> None:
        idling = Idling(self._plan)
        while await self._wait_for_room():
            answer = await self._patiently(self._hands.claim())
            if answer is None:
                return
            for job in self._hands.take(answer):
                task = asyncio.create_task(self._run(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            request = idling.after(answer)
            if request is not None:
                looked = await self._patiently(request)
                if looked is not None:
                    idling.looked(looked)

    async def _wait_for_room(self) -> bool:
        while not self._stopping.is_set():
            if self._hands.free > 0:
                return True
            self._room.clear()
            await self._room.wait()
        return False

    async def _patiently(self, request: Request[A]) -> A | None:
        """Sends a request until it is answered; None when the worker is stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                return await self._client._send(request, self._client._follower_retry(_TRIES_S))
            except ClientError as error:
                if not may_try_again(error, repeatable=True):
                    raise
                _log.warning("a worker waits for its server", extra={"node": self.node, "cause": str(error)})
        return None

    async def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            if self._stopping.is_set():
                # Claimed and not begun: somebody else can have it at once.
                raise RetryJob(0.0)
            await self._plan.handle(job)
        except asyncio.CancelledError:
            error = RetryJob(0.0)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, RetryJob):
                _log.warning("a job failed", extra={"topic": self._plan.topic, "seq": job.seq}, exc_info=raised)
        if error is None:
            self._hands.succeeded(job)
        else:
            self._hands.failed(job, error)
        await self._settle()

    async def _settle(self) -> None:
        """Tells the server of jobs that have ended. One task does it for all that end meanwhile."""
        if self._settling:
            return
        self._settling = True
        try:
            while todo := self._hands.settlement():
                for request, jobs in todo:
                    outcome: Settled | ClientError
                    try:
                        outcome = await self._client.send(request)
                    except ClientError as error:
                        outcome = error
                    self._hands.settled(jobs, outcome)
                    self._room.set()
        finally:
            self._settling = False

    async def _keep(self) -> None:
        """Extends the leases of everything under way, until the worker is done."""
        every_s = self._plan.extend_every_s
        while True:
            await asyncio.sleep(every_s)
            request = self._hands.extension()
            if request is None:
                continue
            try:
                await self._client._send(request, self._client._follower_retry(every_s))
            except ClientError as error:
                _log.warning("leases could not be extended", extra={"node": self.node, "cause": str(error)})
