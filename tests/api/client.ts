// What a person would write with a generated client; the compiler checks every line of it.

import createClient from "openapi-fetch";
import type { components, paths } from "./delta-ci.js";

declare const process: { env: Record<string, string>; exit(code: number): never };

const client = createClient<paths>({
  baseUrl: process.env["DELTA_SERVER"]!,
  headers: { Authorization: `Bearer ${process.env["DELTA_TOKEN"]}` },
});

function check(good: boolean, seen: unknown): asserts good {
  if (!good) {
    console.error(JSON.stringify(seen));
    process.exit(1);
  }
}

const run = await client.POST("/api/v1/runs", {
  body: { jobs: [{ name: "unit", job_spec: { steps: ["make test"] } }] },
});
check(run.data?.state === "QUEUED", run);
const id = run.data.run_id;
const page = await client.GET("/api/v1/runs", { params: { query: { limit: 1, state: "QUEUED" } } });
check(page.data?.runs[0]?.run_id === id, page);
const shown = await client.GET("/api/v1/runs/{id}", { params: { path: { id } } });
const state: components["schemas"]["JobState"] | undefined = shown.data?.jobs[0]?.state;
check(state === "QUEUED", shown);
const over = await client.POST("/api/v1/runs/{id}/cancel", { params: { path: { id } } });
check(over.data?.state === "CANCELED" || over.data?.state === "REPORTED", over);

const call = await client.POST("/api/v1/functions", { body: { function: "send_email" } });
check(call.data !== undefined && "id" in call.data, call);
const detail = await client.GET("/api/v1/functions/{id}", {
  params: { path: { id: call.data.id } },
});
// The same address gives a stream of events to whoever asks for one.
check(typeof detail.data === "object" && detail.data.function === "send_email", detail);

const role: components["schemas"]["Role"] = "runner";
const made = await client.POST("/api/v1/tokens", { body: { role, name: "build" } });
check(made.data?.view.role === role && made.data.token !== undefined, made);

const missing = await client.GET("/api/v1/runs/{id}", {
  params: { path: { id: `run_${"0".repeat(32)}` } },
});
check(missing.error?.code === "NOT_FOUND", missing);
const wrong = await client.POST("/api/v1/runs", { body: { jobs: [] } });
check(wrong.error?.field === "jobs", wrong);
console.log("done");
