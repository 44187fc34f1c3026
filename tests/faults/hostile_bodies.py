"""Thirty bodies that no client should send, each to a running service (drill 11).

What a schema can say is tried beyond these by schemathesis in `tests/contract/test_schema_contract.py`.
"""

import json

import httpx

from tests.faults.figure import Figure, count
from tests.faults.scene import Scene
from tests.faults.stage import Stage

LARGEST_ANSWER = 4096


def _item(**fields: object) -> bytes:
    return json.dumps({"item_id": "a", "title": "b", **fields}).encode()


BODIES: tuple[tuple[str, bytes], ...] = (
    ("/recommend", b""),
    ("/recommend", b"{"),
    ("/recommend", b"null"),
    ("/recommend", b"[]"),
    ("/recommend", b'"text"'),
    ("/recommend", b"\xff\xfe\x00"),
    ("/recommend", b"{" * 100_000),
    ("/recommend", b"[" * 100_000 + b"]" * 100_000),
    ("/recommend", b'{"user_id": NaN}'),
    ("/recommend", b'{"user_id": "\\ud800"}'),
    ("/recommend", b'{"user_id": "u", "num_results": 1e400}'),
    ("/recommend", b'{"user_id": "u", "num_results": -1}'),
    ("/recommend", b'{"user_id": "u", "num_results": 10000000000000000000000}'),
    ("/recommend", b'{"user_id": "u", "num_results": 2.5}'),
    ("/recommend", b'{"user_id": "u", "num_results": true}'),
    ("/recommend", json.dumps({"user_id": "u" * 100_000}).encode()),
    ("/recommend", json.dumps({"history": ["x"] * 100_000}).encode()),
    ("/recommend", json.dumps({"history": [{"item_id": "a", "timestamp": -1e308}]}).encode()),
    ("/recommend", json.dumps({"user_id": "u", "filter": {"include": {"year": [[[[]]]]}}}).encode()),
    ("/recommend", json.dumps({"user_id": "u", "filter": {"min": {"no such field": 1}}}).encode()),
    ("/recommend", json.dumps({"user_id": "u", "exclude": ["x"] * 100_000}).encode()),
    ("/recommend", json.dumps({"user_id": "u", "unknown": 1}).encode()),
    ("/items", _item(title="")),
    ("/items", _item(title="\u200b\u202e")),
    ("/items", _item(title="t" * 2_000_000)),
    ("/items", _item(attributes={"k" * 10_000: 1})),
    ("/items", _item(attributes={str(n): n for n in range(10_000)})),
    ("/items", b'{"item_id": "a", "title": "b", "attributes": {"x": Infinity}}'),
    ("/items", json.dumps({"items": [{"item_id": "a"}] * 100_000}).encode()),
    ("/events", b'{"user_id": {"$ne": null}, "item_id": "a", "event": "click"}'),
)


async def refused(scene: Scene, length: float) -> list[Figure]:
    """Drill 11: no answer says that the server is to blame, none is long, and the service stays ready."""
    async with scene.stage() as at:
        answers = [await _send(at, path, body) for path, body in BODIES]
        ready = await at.replicas[0].readiness(at.client)
        return [
            count("hostile bodies", len(answers), 30),
            count("answered with 5xx or not at all", sum(a.status_code >= 500 for a in answers)),
            count("answers over 4 KiB", sum(len(a.content) > LARGEST_ANSWER for a in answers)),
            count("status of /health/ready", ready, 200),
        ]


async def _send(at: Stage, path: str, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    try:
        return await at.client.post(f"{at.urls[0]}{path}", content=body, headers=headers)
    except httpx.WriteError:
        return httpx.Response(413)  # refused and closed while this client was still sending
    except httpx.HTTPError:
        return httpx.Response(599)
