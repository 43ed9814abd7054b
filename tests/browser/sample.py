"""A little of everything that the console shows."""

from typing import Any
from urllib.parse import quote

import httpx

JSON = {"content-type": "application/json"}
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>{{7*7}}\'"</title>'
HOSTILE_STREAM = 'rooms/<img src=x onerror="window.pwned=3">'


def append(api: httpx.Client, topic: str, records: list[dict[str, Any]], **more: object) -> None:
    api.post(f"/v0/topics/{topic}", json={"records": records, **more}).raise_for_status()


def fill(api: httpx.Client) -> None:
    append(api, "orders", [{"data": {"id": n, "customer": "ada"}, "tag": f"order-{n}"} for n in range(1, 41)])
    append(api, "recent", [{"data": n} for n in range(1, 101)], config={"cap_records": 30})
    append(api, "exact", [{"data": {"big": 0}}])
    api.post(
        "/v0/topics/exact", headers=JSON, content='{"records":[{"data":{"big":12345678901234567890,"one":1.0}}]}'
    ).raise_for_status()
    append(api, "hostile", [{"data": {HOSTILE: HOSTILE}, "tag": HOSTILE, "node": HOSTILE[:90], "meta": {"m": HOSTILE}}])
    for number in range(120):
        append(api, f"many.{number:03}", [{"data": number}])
    fill_queue(api)
    for source, dest in (("orders", "orders.eu"), ("orders.eu", "billing"), ("recent", "full")):
        if dest == "full":
            api.put("/v0/topics/full", json={"cap_records": 2, "discard": "reject"}).raise_for_status()
        body = {"source": source, "dest": dest, "from_seq": 0}
        api.put(f"/v0/routers/{source}-%3E{dest}", json=body).raise_for_status()
    fill_streams(api)
    for topic, name, seq in (("orders", "billing", 30), ("orders", "mail", 40), ("recent", "slow", 0)):
        api.put(f"/v0/topics/{topic}/consumers/{name}", json={}).raise_for_status()
        if seq:
            api.post(f"/v0/topics/{topic}/consumers/{name}/commit", json={"seq": seq}).raise_for_status()

    yearly = {"topic": "orders", "cron": "0 0 1 1 *", "data": {HOSTILE: HOSTILE}}
    api.put("/v0/schedules/orders.yearly", json=yearly).raise_for_status()


def fill_queue(api: httpx.Client) -> None:
    queue = {"type": "queue", "lease_ms": 600_000, "max_deliveries": 1, "dead_letter": "failed"}
    api.put("/v0/topics/jobs", json=queue).raise_for_status()
    append(api, "jobs", [{"data": {"resize": f"{n}.png"}} for n in range(1, 9)])
    for worker, most in (("ann", 2), ("ben", 1)):
        api.post("/v0/topics/jobs/claim", json={"node": worker, "max": most}).raise_for_status()


def fill_streams(api: httpx.Client) -> None:
    api.put(f"/v1/stream/{quote(HOSTILE_STREAM)}", headers=JSON).raise_for_status()
    api.put("/v1/stream/rooms/42", headers=JSON).raise_for_status()
    api.post("/v1/stream/rooms/42", json=[{"text": "hello"}, {"text": HOSTILE}]).raise_for_status()
    api.put("/v1/stream/bills", headers=JSON).raise_for_status()
    first = {"type": "object", "properties": {"id": {"type": "integer"}, "buyer": {"type": "string"}}}
    api.post("/v1/stream/bills/_schema", json={"schema": first | {"required": ["id", "buyer"]}}).raise_for_status()
    api.post("/v1/stream/bills", json=[{"id": n, "buyer": "ada"} for n in range(5)]).raise_for_status()
    second = {"type": "object", "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}}}
    steps = [{"op": "rename", "from": "/buyer", "to": "/customer"}]
    lens = {"apiVersion": "durable.lens/v1", "schema": "bills", "from": 1, "to": 2, "ops": steps}
    update = {"schema": second | {"required": ["id", "customer"]}, "lens": lens}
    api.post("/v1/stream/bills/_schema", json=update).raise_for_status()
    fill_search(api)


def fill_search(api: httpx.Client) -> None:
    def field(name: str, kind: str, **more: object) -> dict[str, object]:
        return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": f"/{name}"}], **more}

    fields = {
        "time": field("time", "date", column=True, sortable=True),
        "service": field("service", "keyword", exact=True, prefix=True),
        "status": field("status", "integer", exact=True, column=True, sortable=True),
        "message": field("message", "text", analyzer="unicode_word_v1", positions=True),
    }
    count = {"dimensions": ["service"], "intervals": ["1m"], "measures": {"requests": {"kind": "count"}}}
    search = {"primaryTimestampField": "time", "fields": fields, "rollups": {"load": count}}
    api.put("/v1/stream/weblog", headers=JSON).raise_for_status()
    api.post("/v1/stream/weblog/_schema", json={"schema": {"type": "object"}, "search": search}).raise_for_status()
    words = ("card declined", "paid by card", "upstream timeout", HOSTILE)
    entries = [
        {"time": f"2026-03-25T10:{n % 60:02}:00Z", "service": ("billing", "login")[n % 2], "status": 200 + n % 3,
         "message": words[n % 4]}
        for n in range(80)
    ]  # fmt: skip
    api.post("/v1/stream/weblog", json=entries).raise_for_status()
