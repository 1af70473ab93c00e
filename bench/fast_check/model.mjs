// What one would write first with fast-check: commands with a model of the broker that checks each answer.
//
// The same as bench/plain_machine.py, which says what is checked and why; what is changed here is changed there.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import fc from "fast-check";

const PARTITIONS = ["a", "b", "c"];
// The groups, and where each starts; "" is the group-less queue mode, which starts at the oldest message.
const MODES = { billing: "all", analytics: "all", audit: "new", "": null };
const GROUPS = Object.keys(MODES);
const WORDS = ["completed", "failed", "retry", "dlq"];

const RETRY_LIMIT = 3;
const SHORT_LEASE_S = 1;
const LONG_LEASE_S = 60;
const MARGIN_MS = 300;
const SLACK_MS = 50;
export const PATIENT_RUNS = 4;
export const STEPS = 30;

// What a step is about has ended meanwhile.
class NothingThere extends Error {}

const now = () => performance.now();

function chosen(there, which) {
  if (there.length === 0) throw new NothingThere();
  return there[which % there.length];
}

// What JSON makes of a value: -0 becomes 0.
const asJson = (value) => JSON.parse(JSON.stringify(value));

export class Model {
  constructor(url, number, patient) {
    this.url = url;
    this.name = `fast-check-${process.pid}-${number}`;
    this.pushed = Object.fromEntries(PARTITIONS.map((partition) => [partition, []]));
    this.partitionIds = new Map();
    this.lanes = GROUPS.flatMap((group) =>
      PARTITIONS.map((partition) => ({
        group,
        partition,
        cursor: 0,
        failures: 0,
        attempt: 0,
        batch: [-1, -1],
        held: null,
      })),
    );
    this.begun = new Set();
    this.dead = [];
    this.waits = patient ? 1 : 0;
    this.keys = 0;
    this.stalled = false;
  }

  // Talking

  async call(method, path, body) {
    const response = await fetch(`${this.url}/api/v1/${path}`, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    // The machine stalled across the end of a lease: nothing can be said about this run.
    if (this.leases().some((lane) => lane.held.ends < now())) {
      this.stalled = true;
      fc.pre(false);
    }
    return { status: response.status, json: text === "" ? null : JSON.parse(text) };
  }

  groupName(group) {
    return `${this.name}-${group}`;
  }

  lane(group, partition) {
    return this.lanes.find((lane) => lane.group === group && lane.partition === partition);
  }

  leases() {
    return this.lanes.filter((lane) => lane.held !== null);
  }

  // Waits where a lease is about to end, and takes those that ended out of the model.
  async letLeasesEnd() {
    const soon = this.leases().filter((lane) => lane.held.ends - MARGIN_MS < now());
    if (soon.length > 0) await sleep(Math.max(0, Math.max(...soon.map((lane) => lane.held.over)) - now()) + 1);
    for (const lane of this.leases()) {
      if (lane.held.over <= now()) {
        this.dead.push({ lane, lease: lane.held });
        lane.held = null;
      }
    }
  }

  // Push

  async push(items) {
    const asked = items.map(([partition, payload, keyed]) => ({
      queue: this.name,
      partition,
      payload,
      ...(keyed ? { transactionId: `Key-${++this.keys}` } : {}),
    }));
    const { status, json } = await this.call("POST", "push", { items: asked });
    assert.equal(status, 201);
    assert.equal(json.length, asked.length);
    asked.forEach((item, index) => {
      const result = json[index];
      assert.deepEqual([result.index, result.status], [index, "queued"]);
      assert.equal(result.transaction_id, item.transactionId ?? result.message_id);
      const stored = this.pushed[item.partition];
      assert.equal(result.offset, stored.length);
      stored.push({ id: result.message_id, transactionId: result.transaction_id, payload: asJson(item.payload) });
    });
  }

  // Pop; without a lease the broker acknowledges by itself

  async pop(group, partition, batch, partitions, leaseS) {
    if (MODES[group] === "new" && !this.begun.has(group)) partition = ""; // its first pop decides for the whole queue
    if (!this.begun.has(group)) {
      this.begun.add(group);
      for (const name of PARTITIONS) {
        this.lane(group, name).cursor = MODES[group] === "new" ? this.pushed[name].length : 0;
      }
    }
    const asked = new URLSearchParams({ batch, partitions });
    if (group !== "") {
      asked.set("consumerGroup", this.groupName(group));
      asked.set("subscriptionMode", MODES[group]);
    }
    if (leaseS === null) asked.set("autoAck", "true");
    else asked.set("leaseSeconds", leaseS);
    const sent = now();
    const path = `pop/queue/${this.name}${partition === "" ? "" : `/partition/${partition}`}?${asked}`;
    const { status, json } = await this.call("GET", path);
    const ready = (partition === "" ? PARTITIONS : [partition]).filter((name) => {
      const lane = this.lane(group, name);
      return lane.held === null && lane.cursor < this.pushed[name].length;
    });
    if (ready.length === 0) {
      assert.equal(status, 204);
      return;
    }
    assert.equal(status, 200);
    const { messages, leaseId } = json;
    assert.ok(1 <= messages.length && messages.length <= batch);
    const runs = new Map();
    let last = null;
    for (const message of messages) {
      if (message.partition !== last) assert.ok(!runs.has(message.partition), "two runs of one partition");
      last = message.partition;
      runs.set(last, [...(runs.get(last) ?? []), message]);
    }
    for (const name of runs.keys()) assert.ok(ready.includes(name));
    assert.ok(runs.size <= partitions);
    assert.equal(leaseId !== "", leaseS !== null);
    for (const [name, run] of runs) {
      const lane = this.lane(group, name);
      this.compare(lane, run, leaseId);
      const [first, end] = [lane.cursor, lane.cursor + run.length - 1];
      lane.attempt = leaseS === null ? 1 : nextAttempt(lane);
      lane.batch = [first, end];
      if (leaseS === null) {
        lane.cursor = end + 1;
        lane.failures = 0;
      } else {
        const over = now() + leaseS * 1000 + SLACK_MS;
        const short = leaseS === SHORT_LEASE_S;
        lane.held = { id: leaseId, first, last: end, ends: sent + leaseS * 1000, over, short, wait: over };
      }
    }
  }

  // A run begins right after the cursor and is what was pushed, in that order.
  compare(lane, run, leaseId) {
    const attempt = leaseId === "" ? 1 : nextAttempt(lane);
    const wanted = this.pushed[lane.partition].slice(lane.cursor, lane.cursor + run.length);
    const seen = run.map(({ id, transactionId, data }) => ({ id, transactionId, payload: data }));
    assert.deepEqual(seen, wanted);
    for (const message of run) {
      assert.equal(message.leaseId, leaseId);
      assert.equal(message.deliveryAttempt, attempt);
      if (!this.partitionIds.has(lane.partition)) this.partitionIds.set(lane.partition, message.partitionId);
      assert.equal(message.partitionId, this.partitionIds.get(lane.partition));
    }
  }

  // Ack

  async ackOne(which, at, word) {
    const lane = chosen(this.leases(), which);
    const offset = lane.cursor + (at % (lane.held.last - lane.cursor + 1));
    await this.ack(lane, new Map([[offset, word]]), true);
  }

  async ackBatch(which, words) {
    const lane = chosen(this.leases(), which);
    const offsets = open(lane).slice(0, words.length);
    await this.ack(lane, new Map(offsets.map((offset, index) => [offset, words[index]])));
  }

  async ackAll(which) {
    const lane = chosen(this.leases(), which);
    await this.ack(lane, new Map(open(lane).map((offset) => [offset, "completed"])));
  }

  // Acks under a live lease, and moves the model as the contract says.
  async ack(lane, words, one = false) {
    const lease = lane.held;
    const signals = [...words].filter(([, word]) => word === "failed" || word === "retry").map(([offset]) => offset);
    const stop = Math.min(...signals); // Infinity where there is none
    const reached = [...words.keys()].filter((offset) => offset < stop);
    const filed = new Set(reached.filter((offset) => words.get(offset) === "dlq"));
    let failures = filed.size > 0 ? 0 : lane.failures;
    let cursor = Math.max(lane.cursor - 1, ...reached) + 1;
    const released = stop !== Infinity || cursor > lease.last;
    if (stop !== Infinity) {
      cursor = Math.max(cursor, stop);
      failures += words.get(stop) === "failed" ? 1 : 0;
      if (failures > RETRY_LIMIT) {
        filed.add(stop);
        [failures, cursor] = [0, stop + 1];
      }
    } else if (released) {
      failures = 0;
    }
    const answers = await this.sendAcks(lane, lease.id, words, one);
    [...words].forEach(([offset, word], index) => {
      assert.equal(answers[index].success, true);
      assert.equal(answers[index].leaseReleased, released);
      // Above a signal it may be filed or not.
      if (word !== "dlq" || offset < stop) assert.equal(answers[index].dlq, filed.has(offset));
    });
    [lane.cursor, lane.failures] = [cursor, failures];
    if (released) lane.held = null;
  }

  // Sends acks; the answers, as many and of the same ids.
  async sendAcks(lane, leaseId, words, one = false) {
    const items = [...words].map(([offset, status]) => ({
      transactionId: this.pushed[lane.partition][offset].transactionId,
      status,
      partitionId: this.partitionIds.get(lane.partition),
      ...(leaseId === null ? {} : { leaseId }),
    }));
    const named = lane.group === "" ? {} : { consumerGroup: this.groupName(lane.group) };
    const { status, json } = one
      ? await this.call("POST", "ack", { ...items[0], ...named })
      : await this.call("POST", "ack/batch", { acknowledgments: items, ...named });
    assert.equal(status, 200);
    assert.deepEqual(
      json.map((answer) => answer.index),
      items.map((_, index) => index),
    );
    assert.deepEqual(
      json.map((answer) => answer.transactionId),
      items.map((item) => item.transactionId),
    );
    return json;
  }

  // The dead leases whose batch holds the message after the cursor.
  deadBatches() {
    return this.dead.filter(({ lane, lease }) => lease.first <= lane.cursor && lane.cursor <= lease.last);
  }

  // The leases with a message behind their batch.
  heldBelowTheTip() {
    return this.leases().filter((lane) => lane.held.last + 1 < this.pushed[lane.partition].length);
  }

  // The groups and partitions with a completed message.
  completed() {
    return this.lanes.filter((lane) => lane.cursor > 0 && this.partitionIds.has(lane.partition));
  }

  async ackUnderADeadLease(which) {
    const { lane, lease } = chosen(this.deadBatches(), which);
    const [answer] = await this.sendAcks(lane, lease.id, new Map([[lane.cursor, "completed"]]));
    assert.equal(answer.success, false);
  }

  async ackOutsideTheBatch(which) {
    const lane = chosen(this.heldBelowTheTip(), which);
    const [answer] = await this.sendAcks(lane, lane.held.id, new Map([[lane.held.last + 1, "completed"]]));
    assert.equal(answer.success, false);
  }

  async ackAgain(which) {
    const lane = chosen(this.completed(), which);
    const [answer] = await this.sendAcks(lane, null, new Map([[lane.cursor - 1, "completed"]]));
    assert.deepEqual([answer.success, answer.noop], [true, true]);
  }

  // Leases

  async extend(which) {
    const { held } = chosen(this.leases(), which);
    const same = this.leases().filter((lane) => lane.held.id === held.id);
    const sent = now();
    const { status, json } = await this.call("POST", `lease/${held.id}/extend`, { seconds: LONG_LEASE_S });
    assert.equal(status, 200);
    assert.deepEqual([json.success, json.renewed], [true, same.length]);
    for (const lane of same) {
      lane.held.ends = Math.max(lane.held.ends, sent + LONG_LEASE_S * 1000);
      lane.held.over = Math.max(lane.held.over, now() + LONG_LEASE_S * 1000 + SLACK_MS);
    }
  }

  async extendADeadLease(which) {
    const { lease } = chosen(this.dead, which);
    const { json } = await this.call("POST", `lease/${lease.id}/extend`, { seconds: LONG_LEASE_S });
    assert.deepEqual([json.success, json.renewed], [false, 0]);
  }

  async wait() {
    this.waits -= 1;
    const short = this.leases().filter((lane) => lane.held.short);
    await sleep(Math.max(0, Math.max(0, ...short.map((lane) => lane.held.wait)) - now()) + 1);
    await this.letLeasesEnd();
  }
}

// The delivery attempt of a batch that begins at the cursor.
function nextAttempt({ batch: [first, last], cursor, attempt }) {
  return first <= cursor && cursor <= last ? attempt + 1 : 1;
}

// The offsets of a held batch that are not completed yet.
function open(lane) {
  return Array.from({ length: lane.held.last - lane.cursor + 1 }, (_, index) => lane.cursor + index);
}

class Step {
  constructor(name, values, ready) {
    this.name = name;
    this.values = values;
    this.ready = ready;
  }

  check(model) {
    return this.ready(model);
  }

  async run(model, watch) {
    watch.step();
    try {
      await model.letLeasesEnd();
      await model[this.name](...this.values);
    } catch (error) {
      if (error instanceof NothingThere) return;
      if (!model.stalled) watch.failed(error);
      throw error;
    }
  }

  toString() {
    return `${this.name}(${this.values.map((value) => JSON.stringify(value)).join(", ")})`;
  }
}

function step(name, values, ready = () => true) {
  return fc.tuple(...values).map((drawn) => new Step(name, drawn, ready));
}

const GROUP = fc.constantFrom(...GROUPS);
const BATCH = fc.integer({ min: 1, max: 6 });
const CHOICE = fc.nat(100);
const LEASE_S = fc.constantFrom(SHORT_LEASE_S, LONG_LEASE_S);
const ITEM = fc.tuple(fc.constantFrom(...PARTITIONS), fc.jsonValue({ maxDepth: 2 }), fc.boolean());
const WORD = fc.constantFrom(...WORDS);

const holds = (model) => model.leases().length > 0;

export const COMMANDS = [
  step("push", [fc.array(ITEM, { minLength: 1, maxLength: 5 })]),
  step("pop", [GROUP, fc.constantFrom(...PARTITIONS), BATCH, fc.constant(1), LEASE_S]),
  step("pop", [GROUP, fc.constant(""), BATCH, fc.integer({ min: 1, max: 3 }), LEASE_S]),
  step("pop", [GROUP, fc.constant(""), BATCH, fc.constant(1), fc.constant(null)]),
  step("ackOne", [CHOICE, CHOICE, WORD], holds),
  step("ackBatch", [CHOICE, fc.array(WORD, { minLength: 1, maxLength: 6 })], holds),
  step("ackAll", [CHOICE], holds),
  step("ackUnderADeadLease", [CHOICE], (model) => model.deadBatches().length > 0),
  step("ackOutsideTheBatch", [CHOICE], (model) => model.heldBelowTheTip().length > 0),
  step("ackAgain", [CHOICE], (model) => model.completed().length > 0),
  step("extend", [CHOICE], holds),
  step("extendADeadLease", [CHOICE], (model) => model.dead.length > 0),
  step("wait", [], (model) => model.waits > 0 && model.leases().some((lane) => lane.held.short)),
];
