# What schemathesis does before it asks: nothing waits for a call. One that parks would be waited for until the default runs
# out, and its answer would be the same.
import schemathesis

MOST = 20


def shortened(wait):
    # A query has it as text.
    number = int(wait) if isinstance(wait, str) and wait.isascii() and wait.isdigit() else wait
    return min(number, MOST) if type(number) is int and 0 <= number <= 300_000 else wait


@schemathesis.hook
def before_call(context, case, **kwargs):
    if case.operation.path in ("/v1/calls", "/v1/batches") and isinstance(case.body, dict):
        case.body["wait_ms"] = shortened(case.body.get("wait_ms", MOST))
    if isinstance(case.query, dict) and "wait_ms" in case.query:
        case.query["wait_ms"] = shortened(case.query["wait_ms"])
