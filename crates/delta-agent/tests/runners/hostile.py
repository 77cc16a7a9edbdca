"""A runner for tests: answers as its function's name says, and worse. No SDK, sockets alone."""

import json
import os
import socket
import struct
import sys
import threading
import time

MODE = os.environ.get("MODE", "")
lock = threading.Lock()
in_flight = {}
stats = {"connections": 0, "most_on_one": 0, "most": 0, "now": 0, "cancels": [], "left": 0}
refused = {}
leaving = threading.Event()


def frame(payload):
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return struct.pack(">I", len(body)) + body


def read_exactly(conn, count):
    data = b""
    while len(data) < count:
        piece = conn.recv(min(1 << 16, count - len(data)))
        if not piece:
            return None
        data += piece
    return data


class Connection:
    def __init__(self, conn):
        self.conn = conn
        self.write = threading.Lock()
        self.here = 0
        self.held = []

    def send(self, data):
        with self.write:
            try:
                self.conn.sendall(data)
            except OSError:
                pass

    def leave(self, request):
        """Before the answer: whoever has it may send the next."""
        with lock:
            if in_flight.pop(request["request_id"], None):
                self.here -= 1
                stats["now"] -= 1

    def answer(self, request, **fields):
        self.leave(request)
        payload = {"job_id": request["job_id"], "request_id": request["request_id"]}
        payload.update(fields)
        payload = {name: value for name, value in payload.items() if value != "absent"}
        self.send(frame({"type": "response", "payload": payload}))

    def serve(self):
        while True:
            head = read_exactly(self.conn, 4)
            if head is None:
                # Whoever waits for an answer keeps its side open, too.
                stats["left"] += self.here
                break
            message = json.loads(read_exactly(self.conn, struct.unpack(">I", head)[0]))
            payload = message["payload"]
            if message["type"] == "cancel":
                with lock:
                    stats["cancels"].append(payload)
                    event = in_flight.get(payload.get("request_id"))
                if event:
                    event.set()
            elif MODE in ("sequential", "closes"):
                self.handle(payload)
                if MODE == "closes":
                    break
            else:
                threading.Thread(target=self.handle, args=(payload,), daemon=True).start()
        self.conn.close()

    def handle(self, request):
        event = threading.Event()
        with lock:
            in_flight[request["request_id"]] = event
            self.here += 1
            stats["now"] += 1
            stats["most"] = max(stats["most"], stats["now"])
            stats["most_on_one"] = max(stats["most_on_one"], self.here)
        try:
            if leaving.is_set():
                error = {"message": "nothing of this was begun", "type": "shutting_down"}
                return self.answer(request, status="retry", error=error)
            getattr(self, "do_" + request["function_name"], self.do_unknown)(request, event)
        finally:
            self.leave(request)

    def do_deafen(self, request, _):
        """Lets nobody in any more, and lives on. No answer: nothing is sent here meanwhile."""
        # A close alone would not end the accept that is waited in.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.conn.shutdown(socket.SHUT_RDWR)

    def do_leave(self, request, _):
        """Hands everything back from now on, as a runner that is about to end."""
        leaving.set()
        self.answer(request, status="success", result=None)

    def do_unknown(self, request, _):
        words = "No handler registered for function '%s'" % request["function_name"]
        error = {"message": words, "type": "handler_not_found", "code": None, "details": None}
        self.answer(request, status="error", result=None, error=error)

    def do_echo(self, request, _):
        self.answer(request, status="success", result=request)

    def do_raw(self, request, _):
        """The result as it is written in the parameters."""
        ids = (json.dumps(request["job_id"]), json.dumps(request["request_id"]))
        text = '{"type":"response","payload":{"job_id":%s,"request_id":%s,"status":"success",'
        text = (text % ids) + '"result":' + request["params"]["text"] + "}}"
        self.send(frame(text.encode()))

    def do_say(self, request, _):
        """Whatever the parameters say, in place of an honest answer."""
        self.answer(request, **request["params"])

    def do_text(self, request, _):
        """Frames as they are written in the parameters, with the ids of the request in them."""
        for text in request["params"]["frames"]:
            text = text.replace("@job", request["job_id"]).replace("@req", request["request_id"])
            self.leave(request)
            self.send(frame(text.encode()))

    def do_busy(self, request, _):
        """As a runner that has too much to do, so many times, or for as long as it lives."""
        with lock:
            times = refused[request["job_id"]] = refused.get(request["job_id"], 0) + 1
        if times <= request["params"]["times"] or request["params"].get("pid") == os.getpid():
            error = {"message": "Runner busy: too many in-flight requests"}
            return self.answer(request, status="error", error=error)
        self.answer(request, status="success", result=times)

    def do_exactly(self, request, _):
        """An answer whose frame has so many bytes."""
        ids = (json.dumps(request["job_id"]), json.dumps(request["request_id"]))
        text = '{"type":"response","payload":{"job_id":%s,"request_id":%s,"status":"success",'
        text = (text % ids) + '"result":"x"}}'
        more = request["params"]["bytes"] - len(text) + 1
        self.leave(request)
        self.send(frame(text.replace('"x"', '"' + "x" * more + '"').encode()))

    def do_process(self, request, _):
        me = {"env": dict(os.environ), "argv": sys.argv, "pid": os.getpid(),
              "parent": os.getppid(), "cwd": os.getcwd()}
        self.answer(request, status="success", result=me)

    def do_stats(self, request, _):
        with lock:
            now = dict(stats)
        self.answer(request, status="success", result=now)

    def do_wait(self, request, event):
        """Heeds its cancel."""
        if event.wait(request["params"].get("seconds", 600)):
            error = {"message": "Job cancelled", "type": "cancelled"}
            return self.answer(request, status="error", error=error)
        self.answer(request, status="success", result="waited")

    def do_until(self, request, event):
        """Says that it has begun, waits for a file, and heeds its cancel."""
        if "begun" in request["params"]:
            open(request["params"]["begun"], "w").close()
        while not os.path.exists(request["params"]["path"]):
            if event.wait(0.01):
                error = {"message": "Job cancelled", "type": "cancelled"}
                return self.answer(request, status="error", error=error)
        self.answer(request, status="success", result="there")

    def do_late(self, request, event):
        """Is done all the same."""
        event.wait(600)
        self.answer(request, status="success", result="done")

    def do_never(self, request, _):
        if "mark" in request["params"]:
            open(request["params"]["mark"], "w").close()
        time.sleep(600)

    def do_nameless(self, request, event):
        """Answers long after its cancel, and does not say to what."""
        event.wait(600)
        while not os.path.exists(request["params"]["go"]):
            time.sleep(0.01)
        self.answer(request, request_id="absent", status="success", result="late")
        open(request["params"]["mark"], "w").close()

    def do_garbage(self, request, _):
        self.send(frame(b"{no json"))

    def do_empty(self, request, _):
        self.send(struct.pack(">I", 0))

    def do_oversize(self, request, _):
        self.send(struct.pack(">I", 16 * 1024 * 1024 + 1) + b"x" * 1000)

    def do_twice(self, request, _):
        self.answer(request, status="success", result="first")
        self.answer(request, status="success", result="second")

    def do_steal(self, request, _):
        """Answers in the name of another request that is under way."""
        with lock:
            others = [name for name in in_flight if name != request["request_id"]]
        self.answer(request, request_id=others[0], status="success", result="stolen")

    def do_close(self, request, _):
        self.conn.shutdown(socket.SHUT_RDWR)

    def do_half(self, request, _):
        self.send(struct.pack(">I", 1000) + b'{"type":')
        self.conn.shutdown(socket.SHUT_RDWR)

    def do_die(self, request, _):
        os._exit(9)

    def do_reversed(self, request, _):
        """Answers when so many are here, the last one first."""
        with lock:
            self.held.append(request)
            if len(self.held) < request["params"]["count"]:
                return
            held, self.held = self.held, []
        for each in reversed(held):
            self.answer(each, status="success", result=each["params"]["number"])

    def do_noise(self, request, _):
        print("noise on stdout " + "x" * 100000, flush=True)
        print('{"type":"response","payload":{}}', file=sys.stderr, flush=True)
        self.answer(request, status="success", result="heard")

    def do_unknown_type(self, request, _):
        self.send(frame({"type": "progress", "payload": {}}))
        self.answer(request, status="success", result="after it")


def main():
    host, port = os.environ["RRQ_RUNNER_TCP_SOCKET"].rsplit(":", 1)
    if MODE == "open":
        host = "0.0.0.0"
    if MODE == "silent":
        time.sleep(600)
    if MODE == "exits":
        print("no such module", file=sys.stderr, flush=True)
        sys.exit(3)
    if MODE == "elsewhere" and not os.path.exists(os.environ["HERE"]):
        # Its port is taken by a process that is no child of the one that starts it.
        with open(os.environ["HERE"], "w") as file:
            file.write(port)
        time.sleep(600)
    global listener
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, int(port)))
    listener.listen(128)
    while True:
        try:
            conn, _ = listener.accept()
        except OSError:
            time.sleep(600)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with lock:
            stats["connections"] += 1
        if MODE in ("sequential", "closes"):
            Connection(conn).serve()
        else:
            threading.Thread(target=Connection(conn).serve, daemon=True).start()


main()
