"""Descriptions of the fields of schedules and results of jobs (`topics.api.field_help`)."""

SCHEDULE_HELP: dict[str, dict[str, str]] = {
    "ScheduleBody": {
        "topic": "The topic or queue to append to; required for a new schedule, and cannot change.",
        "cron": (
            "Due times as minute, hour, day of month, month and day of week, optionally with second in front. A new "
            "schedule needs this or `every_ms`; giving one replaces the other."
        ),
        "every_ms": (
            "Interval from 1,000 ms to 366 days, which counts from the creation of the schedule or the change of its "
            "interval."
        ),
        "timezone": "IANA time zone of `cron`. Default: `UTC`.",
        "data": "The data of each job, at most 64 KiB of JSON. Default: null.",
        "tag": "The tag of each job; empty removes it.",
        "catch_up": (
            "Jobs for missed due times, which are more than 10 seconds late: `one` for all of them (default), `none`, "
            "or `all`: one for each, at most 1,000."
        ),
        "paused": "Whether nothing is due. Due times during a pause are not missed. Default: false.",
    },
    "ScheduleSummary": {
        "schedule": "Name of the schedule.",
        "created_ms": "Time of creation.",
        "created_by": "Name of the key that created it.",
        "next_due_ms": "The next due time.",
        "last_due_ms": "The newest due time that got a job.",
        "last_run_ms": "When that job was appended.",
        "last_seq": "Seq of that job.",
        "runs": "Number of jobs since the creation.",
        "error": "Code and message of the last run if it failed; it is tried again every 1 to 60 seconds.",
    },
    "SchedulePutAnswer": {
        "created": "Whether the schedule is new.",
    },
    "ScheduleListAnswer": {
        "schedules": "The schedules of this page.",
    },
    "ScheduleDropAnswer": {
        "schedule": "Name of the schedule.",
        "deleted": "Whether the schedule existed.",
    },
    "JobResultOut": {
        "seq": "Seq of the job.",
        "state": "`done`, or `ready`, `delayed` or `leased` while the job is in the queue.",
        "result": "The result of a job that is done.",
        "finished_ms": "Time of its acknowledgement.",
        "node": "The worker that acknowledged it.",
    },
}
