"""The plainest model of a queue: every job with its whole story, looked through from end to end at every question."""

from dataclasses import dataclass, field


@dataclass
class Job:
    seq: int
    value: int
    ready_at: int = 0
    """Held back until then; 0 when it is not."""
    scheduled: bool = False
    """Whether its writer delayed it; it may then be delivered in either order."""
    priority: int = 0
    deliveries: int = 0
    node: str = ""
    lease_id: str = ""
    deadline: int = 0
    failures: list[tuple[int, int, str, str, bool]] = field(default_factory=list)
    """All of them: delivery, time, node, reason, fatal."""

    def fail(self, at_ms: int, reason: str, fatal: bool = False) -> None:
        self.failures.append((self.deliveries, at_ms, self.node, reason, fatal))

    def told(self) -> tuple[str, str, str]:
        """The failures that a dead letter records."""
        if not self.failures:
            return "", "", ""
        return self.failures[-1][3], str(self.failures[0][1]), str(self.failures[-1][1])

    @property
    def leased(self) -> bool:
        return bool(self.node)

    def let_go(self, ready_at: int = 0) -> None:
        self.node, self.lease_id, self.deadline, self.ready_at = "", "", 0, ready_at


def tag_of(value: int) -> str | None:
    """Most jobs of a queue have one of two tags."""
    return (None, "a", "b", "b")[value % 4]


@dataclass
class QueueModel:
    max_deliveries: int
    jobs: dict[int, Job] = field(default_factory=dict)
    dead: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By seq in the dead letter topic: value, deliveries, seq in the queue."""
    dead_lettered: int = 0
    now: int = 0
    paused: bool = False
    began: int = 0
    """When the process started."""
    max_per_second: int = 0
    max_leased: int = 0
    fair_tags: bool = False
    handed_out: list[int] = field(default_factory=list)
    """When the process delivered each job."""

    def tick(self, now: int) -> None:
        self.now = now
        for job in self.jobs.values():
            if job.leased and job.deadline < now:
                job.fail(job.deadline, "lease expired")
                job.let_go()
            if job.ready_at and job.ready_at <= now:
                job.ready_at = 0

    def jump(self, ms: int) -> None:
        """The wall clock is set by `ms`, and all that lies ahead keeps its distance."""
        self.now += ms
        self.began += ms
        self.handed_out = [moment + ms for moment in self.handed_out]
        for job in self.jobs.values():
            job.deadline += ms if job.leased else 0
            job.ready_at += ms if job.ready_at else 0

    # Questions

    def ready(self) -> list[Job]:
        return [job for _, job in sorted(self.jobs.items()) if not job.leased and not job.ready_at]

    def room(self) -> int:
        """The number of jobs that the limits allow to deliver now."""
        room = 1000
        if self.max_leased:
            room = min(room, self.max_leased - len(self.leases()))
        if self.max_per_second:
            recent = sum(moment > self.now - 1000 for moment in self.handed_out)
            room = min(room, 0 if self.now < self.began + 1000 else self.max_per_second - recent)
        return max(room, 0)

    def leases(self) -> dict[int, tuple[str, int, int]]:
        return {job.seq: (job.node, job.deadline, job.deliveries) for job in self.jobs.values() if job.leased}

    def counters(self) -> tuple[int, int, int, int]:
        delayed = sum(1 for job in self.jobs.values() if job.ready_at)
        return len(self.ready()), len(self.leases()), delayed, self.dead_lettered

    def is_doomed(self, job: Job) -> bool:
        fatal = bool(job.failures) and job.failures[-1][4]
        return fatal or (bool(self.max_deliveries) and job.deliveries >= self.max_deliveries)

    def state(self, seq: int) -> str | None:
        job = self.jobs.get(seq)
        if job is None:
            return None
        return "leased" if job.leased else "delayed" if job.ready_at else "ready"

    def listed(self, state: str) -> list[int]:
        return [seq for seq in sorted(self.jobs) if self.state(seq) == state]

    def next_claim(self, requested: int) -> tuple[list[int], list[int]] | None:
        """Returns the jobs of a claim and the jobs it finds delivered too often; None where the model leaves the order
        open."""
        ready = self.ready() if not self.paused else []
        if self.fair_tags or any(job.scheduled and not job.deliveries and not job.priority for job in ready):
            return None
        got: list[int] = []
        doomed: list[int] = []
        for job in sorted(ready, key=lambda job: (-job.priority, not job.priority and not job.deliveries, job.seq)):
            if len(got) == requested:
                break
            (doomed if self.is_doomed(job) else got).append(job.seq)
        return sorted(got, key=self.place), doomed

    def check_shares(self, seqs: list[int]) -> None:
        """Checks that a claim took each job from the tag with the fewest leases, and the first one of it."""
        leased = [tag_of(job.value) for job in self.jobs.values() if job.leased]
        ready = {job.seq: job for job in self.ready() if not self.is_doomed(job)}
        for seq in seqs:
            job = ready.pop(seq)
            tag, others = tag_of(job.value), list(ready.values())
            assert leased.count(tag) <= min(
                [leased.count(tag_of(other.value)) for other in others], default=len(leased)
            )
            assert not any(self.place(other.seq) < self.place(seq) for other in others if tag_of(other.value) == tag)
            leased.append(tag)

    def place(self, seq: int) -> tuple[int, int]:
        """The place of a job in an answer: by priority, then by seq."""
        return -self.jobs[seq].priority, seq

    def held(self, node: str, seqs: list[int], lease_ids: list[str] | None) -> tuple[list[Job], list[int]]:
        held: list[Job] = []
        skipped: list[int] = []
        for place, seq in enumerate(seqs):
            job = self.jobs.get(seq)
            fence = lease_ids[place] if lease_ids is not None else ""
            if job is None or job in held or job.node != node or (fence and fence != job.lease_id):
                skipped.append(seq)
            else:
                held.append(job)
        return held, skipped

    # Events

    def append(self, first: int, values: list[int], ready_at: int, priority: int = 0) -> None:
        for seq, value in enumerate(values, first):
            self.jobs[seq] = Job(seq, value, ready_at, scheduled=bool(ready_at), priority=priority)

    def deliver(self, seq: int, node: str, lease_id: str, deadline: int, deliveries: int, value: int) -> None:
        """A worker was given a job: it must have been free, and the count must be right."""
        job = self.jobs[seq]
        assert not job.leased, f"job {seq} is held by {job.node} and was given to {node}"
        assert not job.ready_at, f"job {seq} is held back until {job.ready_at}"
        assert not self.is_doomed(job), f"job {seq} was delivered too often"
        assert self.room() > 0, f"job {seq} is over a limit"
        self.handed_out.append(self.now)
        job.deliveries += 1
        assert (deliveries, value) == (job.deliveries, job.value)
        assert deadline > self.now
        job.node, job.lease_id, job.deadline = node, lease_id, deadline

    def bury(self, dead_seq: int, value: int, deliveries: int, src_seq: int, told: tuple[str, str, str]) -> None:
        job = self.jobs.pop(src_seq)
        assert not job.leased and self.is_doomed(job)
        assert (value, deliveries, told) == (job.value, job.deliveries, job.told())
        self.dead[dead_seq] = (value, deliveries, src_seq)
        self.dead_lettered += 1

    def restart(self, leases_survive: bool, now: int) -> None:
        self.began, self.handed_out = now, []
        if not leases_survive:
            for job in self.jobs.values():
                job.let_go(0 if job.deliveries else job.ready_at)
                job.deliveries = 0
                job.failures = []
