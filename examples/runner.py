#!/usr/bin/env python3
"""A runner for Delta CI, written from the Runner Protocol alone, with nothing but Python.

It leases a job, acknowledges, heartbeats from a thread, runs the steps with `sh -e`, uploads the
log and completes; it obeys a cancel, and it stops without a word when its lease is stale.
    python3 examples/runner.py --server http://127.0.0.1:7878 --token-file runner.token"""
import argparse, contextlib, hashlib, itertools, json, os, random, signal, subprocess, sys
import tempfile, threading, time
from urllib import error, request
LEASE_WAIT, TIMEOUT, CHUNK = 20, 10, 1 << 20  # seconds, seconds, bytes of a log in one request

class Api:
    """Bodies in, bodies out. The lease is a secret: it travels in bodies and one header only."""
    def __init__(self, server, token):
        self.base, self.credential = server.rstrip("/"), {"Authorization": "Bearer " + token}

    def send(self, method, path, body, headers, timeout):
        url = self.base + "/" + path.removeprefix(self.base).lstrip("/")  # our own server alone
        message = request.Request(url, body, {**self.credential, **headers}, method=method)
        try:
            with request.urlopen(message, timeout=timeout) as answer:
                return answer.status, answer.read()
        except error.HTTPError as refusal:  # 4xx and 5xx have a body that says why
            return refusal.code, refusal.read()
        except OSError as away:
            return 503, json.dumps({"message": str(away)}).encode()

    def post(self, action, message, timeout=TIMEOUT):
        body, kind = json.dumps(message).encode(), {"Content-Type": "application/json"}
        status, answer = self.send("POST", "/api/v1/runner/" + action, body, kind, timeout)
        return status, json.loads(answer or b"{}")

    def insist(self, action, message, until):
        """Repeats a message until it is judged: each of them may safely arrive twice."""
        for tries in itertools.count():
            pause, (status, answer) = min(0.1 * 2**tries, 5), self.post(action, message)
            if (status != 429 and status < 500) or time.monotonic() + pause > until:
                return status, answer
            time.sleep(pause * random.uniform(0.5, 1))

class Attempt:
    """One lease: the work, and a thread that keeps the lease alive meanwhile."""
    def __init__(self, api, runner_id, grant):
        self.api, self.grant, self.lock = api, grant, threading.Lock()
        self.mine = {"lease_id": grant["lease_id"], "runner_id": runner_id}
        self.ends_at = time.monotonic() + grant["lease_ttl_seconds"]
        self.over, self.stop, self.process, self.step = threading.Event(), None, None, 0

    def run(self):
        accept = {"type": "AckLease", "job_id": self.grant["job_id"], **self.mine}
        status, answer = self.api.insist("ack-lease", accept, self.ends_at)
        if status != 200 or not answer["accepted"]:
            return "stale"  # nothing has begun, so there is nothing to undo
        threading.Thread(target=self.heartbeat, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            try:
                outcome, code = self.execute(folder, log)
            except (KeyError, OSError):  # work of another kind, or a folder or spec not there
                outcome, code = "FAILED", None
            if self.stop != "stale":  # nobody waits for the result of a stale lease
                outcome = self.report(outcome, code, self.upload(log))
        self.over.set()
        return "stale" if self.stop == "stale" else outcome

    def spec(self):
        """Inside the grant, or, when it is too large for one, where the grant says."""
        if "job_spec" in self.grant: return self.grant["job_spec"]
        place, lease = self.grant["job_spec_ref"], {"Delta-Lease": self.mine["lease_id"]}
        status, text = self.api.send("GET", place["uri"], None, lease, 60)
        if status == 200 and hashlib.sha256(text).hexdigest() == place["sha256"]:
            return json.loads(text)
        raise OSError(f"the spec was not fetched: {status}")

    def execute(self, folder, log):
        spec = self.spec()
        env = {**os.environ, **spec.get("env", {}), "DELTA_ATTEMPT": str(self.grant.get("attempt")),
               "DELTA_LEASE_EPOCH": str(self.grant.get("lease_epoch"))}
        options = dict(cwd=os.path.join(folder, spec.get("workdir", ".")), env=env, stdout=log,
                       stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + self.grant["max_runtime_seconds"]
        for self.step, step in enumerate(spec["steps"]):
            with self.lock:  # a stop must not slip in between the look and the start
                if self.stop: return "FAILED", None
                self.process = subprocess.Popen(["sh", "-ec", step], **options)
            try:
                code = self.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.halt(None, grace=5)
                return "TIMED_OUT", None
            if code: return "FAILED", code if code > 0 else 128 - code  # as a shell spells signals
        return "SUCCEEDED", 0

    def heartbeat(self):
        while not self.over.wait(self.grant["heartbeat_interval_seconds"]):
            beat = {"type": "Heartbeat", "progress": {"step_index": self.step}, **self.mine}
            sent = time.monotonic()
            status, answer = self.api.post("heartbeat", beat)
            if status == 200 and answer["extend_lease"]:
                self.ends_at = sent + answer["new_lease_ttl_seconds"]
                if answer["cancel_requested"] and not self.stop:
                    self.halt("canceled", answer["cancel_deadline_seconds"] / 2)
            elif answer.get("stale") or time.monotonic() >= self.ends_at:
                return self.halt("stale", grace=1)

    def halt(self, why, grace):
        """TERM to the whole process group, then KILL."""
        with self.lock:
            self.stop = why or self.stop
        rounds = ((signal.SIGTERM, grace), (signal.SIGKILL, 5)) if self.process else ()
        for number, patience in rounds:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self.process.pid, number)
                self.process.wait(patience)

    def upload(self, log):
        want = {"type": "CreateUpload", "name": "log.txt", "kind": "log", **self.mine}
        status, place = self.api.post("uploads", want)
        size, _ = log.seek(0, os.SEEK_END), log.seek(0)
        for offset in range(0, size, CHUNK) if status < 300 else ():
            fence = {"Delta-Lease": self.mine["lease_id"], "Upload-Offset": str(offset)}
            status = max(status, self.api.send("PUT", place["url"], log.read(CHUNK), fence, 60)[0])
        return [{"type": "log", "uri": place["uri"]}] if status < 300 else []

    def report(self, outcome, code, artifacts):
        mine, answer = {"artifacts": artifacts, **self.mine}, {}
        if not self.stop:
            done = {"type": "Complete", "status": outcome, "exit_code": code, **mine}
            _, answer = self.api.insist("complete", done, self.ends_at)
        if self.stop or answer.get("reason") == "CANCEL_REQUESTED":  # the cancel was first
            halted = {"type": "CancelAck", "final_status": "CANCELED", **mine}
            self.stop, (_, answer) = "canceled", self.api.insist("cancel-ack", halted, self.ends_at)
        return "stale" if answer.get("type") == "StaleLease" else self.stop or outcome

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in "--server", "--token-file": parser.add_argument(name, required=True)
    parser.add_argument("--runner-id", default=f"{os.uname().nodename}-{os.getpid()}")
    parser.add_argument("--capability", action="append", default=[], help="such as linux")
    parser.add_argument("--once", action="store_true", help="end after one job")
    args, status = parser.parse_args(), None
    api = Api(args.server, open(args.token_file).read().strip())
    ask = {"type": "Lease", "runner_id": args.runner_id, "capabilities": args.capability,
           "wait_seconds": LEASE_WAIT}
    while not (args.once and status == 200):
        status, answer = api.post("lease", ask, LEASE_WAIT + TIMEOUT)
        if status == 200:
            print(answer["job_id"], Attempt(api, args.runner_id, answer).run(), flush=True)
        elif status in (401, 403, 422): sys.exit(f"this runner is refused: {answer.get('message')}")
        elif status != 204: time.sleep(random.uniform(0.5, 2))  # busy, overloaded or away
