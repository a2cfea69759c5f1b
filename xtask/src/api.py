# What schemathesis does before it asks. Nothing waits for a call: one that parks would be waited for until the default runs
# out, and its answer would be the same. Backups are written where they go away with everything else.
import os

import schemathesis

MOST = 20
BACKUPS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "backups")
os.makedirs(BACKUPS, exist_ok=True)


def shortened(wait):
    # A query has it as text.
    number = int(wait) if isinstance(wait, str) and wait.isascii() and wait.isdigit() else wait
    return min(number, MOST) if type(number) is int and 0 <= number <= 300_000 else wait


def kept_here(place):
    # Whatever is asked for becomes one name; what was asked for before may come again as it was sent.
    if not isinstance(place, str) or not place.startswith("/") or os.path.dirname(place) == BACKUPS:
        return place
    return os.path.join(BACKUPS, place.replace("/", "_"))


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.operation.path == "/v1/admin/backup" and isinstance(case.body, dict) and "to" in case.body:
        case.body["to"] = kept_here(case.body["to"])
    if case.operation.path in ("/v1/calls", "/v1/batches") and isinstance(case.body, dict):
        case.body["wait_ms"] = shortened(case.body.get("wait_ms", MOST))
    if isinstance(case.query, dict) and "wait_ms" in case.query:
        case.query["wait_ms"] = shortened(case.query["wait_ms"])
