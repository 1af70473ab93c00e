// One hunt: node hunt.mjs URL SEED BUDGET_S SHRINK_S
//
// Prints one line of JSON: seconds to the first failing run (null: none) and to the end, the fewest steps of a failing
// run, how many runs there were, what the smallest failure said, and whether shrinking was cut off. Ends by itself when
// the time is up.

import fc from "fast-check";
import { COMMANDS, PATIENT_RUNS, Model, STEPS } from "./model.mjs";

const [url, seed, budgetS, shrinkS] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const begun = performance.now();
const seconds = () => (performance.now() - begun) / 1000;
const found = { first_s: null, end_s: 0, steps: 0, runs: 0, error: "", cut_off: false };

function outOfTime() {
  found.cut_off = found.first_s !== null;
  end();
}

function end() {
  found.end_s = seconds();
  process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0));
}

let timer = setTimeout(outOfTime, budgetS * 1000);

// Counts the steps of one run, and notes that it failed.
class Watch {
  steps = 0;

  step() {
    this.steps += 1;
  }

  failed(error) {
    if (found.first_s === null) {
      found.first_s = seconds();
      found.steps = this.steps;
      clearTimeout(timer);
      timer = setTimeout(outOfTime, (budgetS + shrinkS) * 1000 - (performance.now() - begun));
    }
    if (this.steps <= found.steps) {
      found.steps = this.steps;
      found.error = `${error.name}: ${error.message}`.replaceAll(/\s+/g, " ").slice(0, 200);
    }
  }
}

const patience = fc.constantFrom(...Array(PATIENT_RUNS - 1).fill(false), true);
const commands = fc.commands(COMMANDS, { maxCommands: STEPS, size: "max" });
const property = fc.asyncProperty(patience, commands, async (patient, steps) => {
  found.runs += 1;
  await fc.asyncModelRun(() => ({ model: new Model(url, found.runs, patient), real: new Watch() }), steps);
});
const result = await fc.check(property, { seed, numRuns: 1_000_000, maxSkipsPerRun: 1_000 });
if (result.failed && found.first_s === null) throw result.errorInstance ?? new Error("failed without a failing step");
end();
