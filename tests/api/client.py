"""What a person would write with a generated client; every line is checked by the types it returns."""

import os

from delta_ci_client import AuthenticatedClient
from delta_ci_client.api.functions import enqueue_functions, show_function
from delta_ci_client.api.runs import cancel_run, create_run, list_runs, show_run
from delta_ci_client.api.tokens import create_token, list_tokens
from delta_ci_client.models import (
    CreateFunction,
    CreateFunctions,
    CreateJob,
    CreateRun,
    CreateToken,
    ErrorBody,
    FunctionList,
    JobSpec,
    JobState,
    Role,
    RunState,
)

client = AuthenticatedClient(base_url=os.environ["DELTA_SERVER"], token=os.environ["DELTA_TOKEN"])

job = CreateJob(name="unit", job_spec=JobSpec(steps=["make test"]))
run = create_run.sync(client=client, body=CreateRun(jobs=[job]))
assert run.state == RunState.QUEUED, run
page = list_runs.sync(client=client, limit=1, state=RunState.QUEUED)
assert [it.run_id for it in page.runs] == [run.run_id], page
shown = show_run.sync(run.run_id, client=client)
assert [it.state for it in shown.jobs] == [JobState.QUEUED], shown
over = cancel_run.sync(run.run_id, client=client)
assert over.state in (RunState.CANCELED, RunState.REPORTED), over

call = enqueue_functions.sync(client=client, body=CreateFunction(function="send_email"))
detail = show_function.sync(call.id, client=client)
assert (detail.function, detail.state) == ("send_email", JobState.QUEUED), detail
several = CreateFunctions(functions=[CreateFunction(function="a"), CreateFunction(function="b")])
several = enqueue_functions.sync(client=client, body=several)
assert isinstance(several, FunctionList), several
assert [it.function for it in several.functions] == ["a", "b"], several

made = create_token.sync(client=client, body=CreateToken(role=Role.RUNNER, name="build"))
assert made.token and made.view.role == Role.RUNNER, made
assert made.view.token_id in [it.token_id for it in list_tokens.sync(client=client)]

missing = show_run.sync("run_" + "0" * 32, client=client)
assert isinstance(missing, ErrorBody) and missing.code == "NOT_FOUND", missing
wrong = create_run.sync(client=client, body=CreateRun(jobs=[]))
assert isinstance(wrong, ErrorBody) and wrong.field == "jobs", wrong
print("done")
