"""A worker that calls a function with the jobs of a queue, in threads."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from topics.client.backoff import may_try_again
from topics.client.errors import ClientError
from topics.client.hands import Hands, Plan, RetryJob, Settled
from topics.client.idling import Idling
from topics.client.jobs import Job
from topics.client.requests import A, Request

if TYPE_CHECKING:
    from topics.client.sync import Client

_GLANCE_S = 0.2
"""How often a worker that waits looks whether it was stopped: `stop` may come from a signal handler, which must not
touch a lock that the interrupted code could hold."""
_TRIES_S = 1.0
"""How long a claim is tried before the worker looks up."""

_log = logging.getLogger(__name__)


class Worker:
    """Works on a queue until it is stopped. Made by `Client.worker`."""

    def __init__(self, client: "Client", plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._hands = Hands(plan, client._dice)
        self._changed = threading.Condition()
        self._stopping = False
        self._settling = False
        self._over = threading.Event()

    @property
    def node(self) -> str:
        """The worker's name, as leases show it."""
        return self._hands.node

    def stop(self) -> None:
        """Lets `run` return once the jobs under way are done. Any thread may call it, and a signal handler too."""
        self._stopping = True

    def run(self) -> None:
        """Works until `stop` is called. Raises what makes going on pointless, such as `TopicNotFound`.

        However it ends, the jobs under way are finished first. A server that restarts, throttles or cannot be reached
        is waited for.
        """
        self._over.clear()
        keeper = threading.Thread(target=self._keep, name=f"{self.node}-leases", daemon=True)
        keeper.start()
        try:
            with ThreadPoolExecutor(self._plan.concurrency, thread_name_prefix=self.node) as pool:
                try:
                    self._work(pool)
                finally:
                    self._stopping = True
        finally:
            self._over.set()
            keeper.join()

    def _work(self, pool: ThreadPoolExecutor) -> None:
        idling = Idling(self._plan)
        while self._wait_for_room():
            answer = self._patiently(self._hands.claim())
            if answer is None:
                return
            with self._changed:
                jobs = self._hands.take(answer)
            for job in jobs:
                pool.submit(self._run, job)
            request = idling.after(answer)
            if request is not None:
                looked = self._patiently(request)
                if looked is not None:
                    idling.looked(looked)

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not self._stopping:
                if self._hands.free > 0:
                    return True
                self._changed.wait(_GLANCE_S)
        return False

    def _patiently(self, request: Request[A]) -> A | None:
        """Sends a request until it is answered; None when the worker is stopped meanwhile."""
        while not self._stopping:
            try:
                return self._client._send(request, self._client._follower_retry(_TRIES_S), self._client._sleep)
            except ClientError as error:
                if not may_try_again(error, repeatable=True):
                    raise
                _log.warning("a worker waits for its server", extra={"node": self.node, "cause": str(error)})
        return None

    def _run(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            if self._stopping:
                # Claimed and not begun: somebody else can have it at once.
                raise RetryJob(0.0)
            self._plan.handle(job)
        except BaseException as raised:
            error = raised
            if not isinstance(raised, RetryJob):
                _log.warning("a job failed", extra={"topic": self._plan.topic, "seq": job.seq}, exc_info=raised)
        with self._changed:
            if error is None:
                self._hands.succeeded(job)
            else:
                self._hands.failed(job, error)
        self._settle()

    def _settle(self) -> None:
        """Tells the server of jobs that have ended. One thread does it for all that end meanwhile."""
        with self._changed:
            if self._settling:
                return
            self._settling = True
        try:
            while True:
                with self._changed:
                    todo = self._hands.settlement()
                    if not todo:
                        self._settling = False
                        return
                for request, jobs in todo:
                    outcome: Settled | ClientError
                    try:
                        outcome = self._client.send(request)
                    except ClientError as error:
                        outcome = error
                    with self._changed:
                        self._hands.settled(jobs, outcome)
                        self._changed.notify_all()
        except BaseException:
            self._settling = False
            raise

    def _keep(self) -> None:
        """Extends the leases of everything under way, until the worker is done."""
        every_s = self._plan.extend_every_s
        while not self._over.wait(every_s):
            with self._changed:
                request = self._hands.extension()
            if request is None:
                continue
            try:
                self._client._send(request, self._client._follower_retry(every_s), self._client._sleep)
            except ClientError as error:
                _log.warning("leases could not be extended", extra={"node": self.node, "cause": str(error)})
