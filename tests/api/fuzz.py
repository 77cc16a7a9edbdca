"""What schemathesis asks of every answer beside its own checks.

Loaded by it through SCHEMATHESIS_HOOKS. A request that the document allows is either carried out or
refused with words that docs/api.md lists, under the status it lists them with.
"""

import os
import re

import schemathesis

# Said before a request is looked at: who may ask, and how busy the server is.
ANY = {401, 403, 429, 503}


def listed():
    """The table of what no schema can say: pairs of a status and the words of a message."""
    rows = []
    with open(os.environ["DELTA_API_PAGE"], encoding="utf-8") as page:
        for line in page:
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 5 and cells[1].isdigit() and cells[2].startswith("`"):
                rows.append((int(cells[1]), cells[2].strip("`")))
    assert len(rows) > 20, "the table of docs/api.md is not where it was"
    return rows


UNSAID = listed()


@schemathesis.check
def what_is_valid_is_accepted(ctx, response, case):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    status = response.status_code
    if status < 400 or status >= 500 or status in ANY:
        return
    said = response.json()
    # A message of the Runner Protocol: the lease is over, which nobody can know beforehand.
    if status == 409 and "type" in said:
        return
    for line in said.get("message", "").split("\n"):
        line = re.sub(r"\d+", "N", line)
        if not any(status == known and words in line for known, words in UNSAID):
            raise AssertionError(f"a valid request was refused: {status} {line}")


@schemathesis.check
def an_error_has_the_one_shape(ctx, response, case):
    if response.status_code < 400 or response.status_code == 416:
        return
    if case.method.upper() == "HEAD":
        return
    said = response.json()
    if response.status_code == 409 and "type" in said:
        return
    wanted = {"code": str, "message": str, "retryable": bool}
    for field, kind in wanted.items():
        if not isinstance(said.get(field), kind):
            raise AssertionError(f"{response.status_code} without `{field}`: {said}")


# Longer than this nobody waits here: the time is for other requests.
SHORT = 0.1


def shortened(fields, name):
    """Cuts a number of seconds short, where one is given."""
    if isinstance(fields, dict) and isinstance(fields.get(name), (int, float)):
        if fields[name] > SHORT:
            fields[name] = SHORT


@schemathesis.hook
def before_call(ctx, case, **_):
    shortened(case.query, "wait")
    shortened(case.body, "wait_seconds")
