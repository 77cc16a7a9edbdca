#!/usr/bin/env python3
"""An agent for Delta CI, written from protocol/agent/README.md alone, with grpcio.

It dials, registers, renews its leases, executes steps with `sh -e`, sends what they print and how
they ended; it obeys cancels and drains, and comes back by itself when the stream breaks. It needs
the packages grpcio and grpcio-tools, or on Debian python3-grpcio, protobuf-compiler,
protobuf-compiler-grpc and libprotobuf-dev.
    python3 examples/agent.py --server http://127.0.0.1:7878 --token-file runner.token"""
import argparse, collections, contextlib, importlib, json, os, random, shutil, signal, subprocess
import sys, tempfile, threading
from time import monotonic, sleep
import grpc

STALE, GRACE = -1, 5  # end without a word; seconds between TERM and KILL
CHUNK, MOST_WAITING = 1 << 16, 64  # bytes of log in a message; messages before logs must wait
GIVE_UP = ("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION",
           "ABORTED")  # coming back would not help; ABORTED: another one goes by our id

def generate(proto=os.path.join(os.path.dirname(__file__), "../protocol/agent/v1/agent.proto")):
    """The messages and the call, in Python, for as long as it takes to load them."""
    plugin = shutil.which("grpc_python_plugin")  # Debian's; else the one of grpcio-tools
    command = ["protoc", "--plugin=protoc-gen-grpc_python=" + plugin] if plugin else \
        [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([*command, "-I" + os.path.dirname(proto), "--python_out=" + out,
                        "--grpc_python_out=" + out, proto], check=True)
        sys.path.insert(0, out)
        modules = [importlib.import_module(name) for name in ("agent_pb2", "agent_pb2_grpc")]
        sys.path.remove(out)
    return modules

pb, rpc = generate()

class Work:
    """One execution under one lease. The lease is a secret: it is in messages, nowhere else."""
    def __init__(self, agent, order):
        self.agent, self.order, self.thread, self.process = agent, order, None, None
        self.stop = None  # how it is to end, once that is ordered
        self.mine = dict(run_id=order.run_id, agent_id=agent.agent_id, lease=order.lease)
        self.asked = monotonic()  # when the oldest renewal left that is not answered yet
        self.ends_at = self.asked + order.lease_ttl_ms / 1000
        limit = order.timeout_seconds or agent.config.default_timeout_seconds
        self.deadline = self.asked + limit
        self.sent = 0  # bytes of log
        self.expect(work_accepted=pb.WorkAccepted(**self.mine))

    def expect(self, **message):
        """Says something that must be answered: it is repeated with every heartbeat until then."""
        self.unanswered = self.agent.say(**message)

    def renewed(self, ttl_ms):
        if self.asked: self.ends_at, self.asked = self.asked + ttl_ms / 1000, None

    def run(self):
        try:
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
                status = self.execute(json.loads(self.order.job_spec), folder, log)
        except Exception as error:  # such as a folder that is not there: not the user's doing
            print(self.order.job_id, error, file=sys.stderr, flush=True)
            status = pb.RUN_STATUS_ERROR
        with self.agent.changed:  # no cancel may slip in between
            status = self.stop or status
            print(self.order.job_id, "stale" if status == STALE else pb.RunStatus.Name(status),
                  flush=True)
            if status != STALE:  # nobody waits for the result of a lease that is over
                done = pb.RunComplete(status=status)
                self.expect(result=pb.ResultStream(run_complete=done, **self.mine))

    def execute(self, spec, folder, log):
        env = {**os.environ, **self.order.environment, **spec.get("env", {}),
               "DELTA_ATTEMPT": str(self.order.attempt),
               "DELTA_LEASE_EPOCH": str(self.order.lease_epoch)}
        for step in spec["steps"]:
            self.process = subprocess.Popen(
                ["sh", "-ec", step], cwd=os.path.join(folder, spec.get("workdir", ".")), env=env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            if self.follow(log) or self.stop: return pb.FAILURE
        return pb.SUCCESS

    def follow(self, log):
        """Sends what the step prints until it has ended, and ends it when it must."""
        kill_at = None
        while self.process.poll() is None:
            now = monotonic()
            if now > self.ends_at: self.agent.forget(self)
            elif now > self.deadline: self.stop = self.stop or pb.TIMEOUT
            if self.stop and not kill_at:
                kill_at = now + GRACE
                self.signal(signal.SIGTERM)
            elif kill_at and now > kill_at: self.signal(signal.SIGKILL)
            self.send(log)
            sleep(0.05)
        self.signal(signal.SIGKILL)  # what it left in the background
        while self.stop != STALE and not self.send(log): sleep(0.05)
        return self.process.returncode

    def send(self, log):
        """Sends what is new, and says whether that was all: the file keeps what has no room."""
        while len(self.agent.outbox) < MOST_WAITING:
            data = os.pread(log.fileno(), CHUNK, self.sent)
            if not data: return True
            self.sent += len(data)
            chunk = pb.LogChunk(stream=pb.STDOUT, data=data)
            self.agent.say(result=pb.ResultStream(log_chunk=chunk, **self.mine))
        return False

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            if self.process: os.killpg(self.process.pid, number)  # whatever the step has started

class Agent:
    """What is held and what is to be said; both outlive the session they began in."""
    def __init__(self, args):
        self.args, self.agent_id, self.drain_id, self.config = args, "", "", None
        self.works, self.outbox, self.changed = {}, collections.deque(), threading.Condition()
        self.session, self.beat_at, self.failures = None, 0, 0

    def say(self, **message):
        with self.changed:
            self.outbox.append(pb.AgentMessage(**message))
            self.changed.notify_all()
            return self.outbox[-1]

    def news(self):
        """What is held, or the drain, has changed: a heartbeat says so at once."""
        self.beat_at = 0
        self.changed.notify_all()
        if self.drain_id and not self.works:
            self.say(drain_complete=pb.DrainComplete(drain_id=self.drain_id))

    def forget(self, work):
        """The lease is over, or its result is known."""
        with self.changed:
            work.stop = STALE
            if self.works.pop(work.order.run_id, None): self.news()

    def frames(self, session):
        """All that is said in a session: who we are, then what waits, heartbeats first."""
        can = pb.Capabilities(max_parallel=self.args.slots, work=["steps"])
        message = pb.AgentMessage(register=pb.RegisterRequest(
            agent_id=self.agent_id, agent_name=self.args.name, version="example",
            protocol_version="1.0", capabilities=can))
        yield pb.AgentFrame(messages=[message])
        session.wait()
        while True:
            with self.changed:
                pause = self.beat_at - monotonic()
                if self.session is not session: return  # the next one says the rest
                elif pause <= 0: message = self.heartbeat()
                elif self.outbox: message = self.outbox.popleft()
                else:
                    self.changed.wait(pause)
                    continue
            yield pb.AgentFrame(messages=[message])

    def heartbeat(self):
        status = pb.DRAINING if self.drain_id else pb.BUSY if self.works else pb.IDLE
        beat = pb.Heartbeat(agent_id=self.agent_id, status=status, active_runs=list(self.works))
        now, pause = monotonic(), self.config.heartbeat_interval_seconds
        for run_id, work in self.works.items():
            pause = min(pause, work.order.lease_heartbeat_interval_ms / 1000)
            if work.unanswered and work.unanswered not in self.outbox:
                self.outbox.append(work.unanswered)
            if work.thread:
                beat.leases.add(run_id=run_id, lease=work.order.lease)
                work.asked = work.asked or now
        self.beat_at = now + pause
        return pb.AgentMessage(heartbeat=beat)

    def hear(self, message):
        """Calls on_…; what has no such method is not needed, or not known, and ignored."""
        kind = message.WhichOneof("message") or ""
        said = getattr(message, kind, None)
        work = self.works.get(getattr(said, "run_id", None))
        getattr(self, "on_" + kind, lambda said, work: None)(said, work)

    def on_register_response(self, said, _):
        print("registered", said.agent_id, flush=True)
        self.agent_id, self.config, self.failures = said.agent_id, said.config, 0
        self.session.set()
        self.on_drain(said, None)  # one may have begun while we were away

    def on_assign_work(self, said, work):
        if self.drain_id:
            self.say(work_rejected=pb.WorkRejected(
                run_id=said.run_id, agent_id=self.agent_id, lease=said.lease, reason="draining"))
        elif not work: self.works[said.run_id] = Work(self, said)

    def on_work_ack(self, said, work):
        if work and said.accepted and not work.thread:
            work.unanswered = None
            work.renewed(said.lease_ttl_ms)
            work.thread = threading.Thread(target=work.run, daemon=True)
            work.thread.start()
            self.news()

    def on_heartbeat_ack(self, said, _):
        for answer in said.leases:
            work = self.works.get(answer.run_id)
            if work and answer.stale: self.forget(work)
            elif work and answer.extended:
                work.renewed(answer.lease_ttl_ms)
                if answer.cancel_requested: self.on_cancel_work(answer, work)

    def on_cancel_work(self, said, work):
        if work: work.stop = work.stop or pb.CANCELLED

    def on_complete_ack(self, said, work):
        if work: self.forget(work)

    on_stale_lease = on_complete_ack

    def on_protocol_error(self, said, work):
        print("refused:", said.message_type, said.message, file=sys.stderr, flush=True)
        if work and not said.retryable: self.forget(work)

    def on_drain(self, said, _):
        self.drain_id = said.drain_id
        self.news()

    def on_undrain(self, said, _):
        self.drain_id = ""
        self.news()

    def dial(self):
        """One session. Returns why it ended."""
        secure, target = self.args.server.startswith("https://"), self.args.server.split("//")[-1]
        options = [("grpc.keepalive_time_ms", 20_000)]  # so that a dead connection is noticed
        token = open(self.args.token_file).read().strip()  # anew each time: it may have changed
        self.session = session = threading.Event()  # set when registered, and at the end
        tls = grpc.ssl_channel_credentials() if secure else None
        with grpc.secure_channel(target, tls, options) if secure else \
                grpc.insecure_channel(target, options) as channel:
            call = rpc.AgentServiceStub(channel).Session(
                self.frames(session), metadata=[("authorization", "Bearer " + token)])
            try:
                for frame in call:
                    with self.changed:
                        for message in frame.messages: self.hear(message)
            except grpc.RpcError: pass  # the status says why
            with self.changed:
                self.session = None
                self.changed.notify_all()
            session.set()
            return call.code().name, call.details()

    def serve(self):
        while True:
            code, why = self.dial()
            print("disconnected:", code, why, file=sys.stderr, flush=True)
            if code in GIVE_UP: sys.exit(f"this agent is refused: {why}")
            if code == "NOT_FOUND": self.agent_id = ""
            sleep(min(2**self.failures, 60) * random.uniform(0.5, 1))
            self.failures += 1

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in "--server", "--token-file": parser.add_argument(name, required=True)
    parser.add_argument("--name", default=os.uname().nodename)
    parser.add_argument("--slots", type=int, default=1)
    agent = Agent(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        agent.serve()
    finally:  # nothing outlives us; the leases run out, and others do the work
        for work in list(agent.works.values()): work.signal(signal.SIGKILL)
