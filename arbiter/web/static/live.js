// Sends the event `grown` to each element with `data-live` when what it shows has grown.
"use strict";
(() => {
  const script = document.currentScript;
  const { root, newest } = document.body.dataset;
  const url = `${root}/live`;
  if (!document.querySelector("[data-live]")) return;
  const EVERY = 300; // milliseconds between two updates of a page
  const LOST = "✗ This page is not updated now: the viewer does not answer, or cannot read its ledger. If the viewer was started again, open its new address.";
  let waiting = new Set();
  let isResting = false;
  const asking = new WeakSet(); // elements whose answer is on its way: it may replace them, and an event would be lost

  function grow(element) {
    if (element.hasAttribute("hx-get")) {
      asking.add(element);
      const unfolds = () => [...element.querySelectorAll("details")];
      const open = unfolds().map((each) => each.open);
      const focused = unfolds().findIndex((each) => each.firstElementChild === document.activeElement);
      element.addEventListener("htmx:finally:request", () => {
        asking.delete(element);
        unfolds().forEach((each, number) => { each.open ||= open[number] ?? false; });
        if (document.activeElement === document.body) unfolds()[focused]?.firstElementChild.focus();
      }, { once: true });
    }
    element.dispatchEvent(new CustomEvent("grown"));
  }

  function update() {
    if (!waiting.size) { isResting = false; return; }
    const grown = waiting;
    waiting = new Set();
    isResting = true;
    for (const element of document.querySelectorAll("[data-live]")) {
      const name = element.dataset.live;
      if (!(grown.has("all") || name === "ledger" || grown.has(name))) continue;
      if (asking.has(element)) waiting.add(name);
      else grow(element);
    }
    setTimeout(update, EVERY);
  }

  function heard({ threads, lost }) {
    if (lost !== undefined) { document.getElementById("lost").textContent = lost ? LOST : ""; return; }
    for (const name of threads === null ? ["all"] : threads.map((ref) => `thread:${ref}`)) waiting.add(name);
    if (!isResting) update();
  }

  // A page that stays open keeps its newest entries, and those that are in use; a link leads to the others.
  const MOST = 250;
  const steps = document.querySelector("ol.steps");
  function trim() {
    const entries = (row) => row.matches(".remark") ? [row] : [...row.querySelectorAll(".siblings > details")];
    let left = [...steps.children].flatMap(entries).length;
    let upto = 0;
    for (const row of [...steps.children]) {
      if (left <= MOST) break;
      if (row.matches(":has(details[open], :focus)")) continue;
      const removed = entries(row);
      left -= removed.length;
      upto = Math.max(upto, ...removed.map(({ id }) => Number(id.slice(1))));
      row.remove();
    }
    if (!upto) return;
    const older = document.getElementById("older");
    older.firstElementChild.href = `?before=${upto + 1}#steps`;
    older.hidden = false;
  }
  if (steps) new MutationObserver(trim).observe(steps, { childList: true });

  const port = window.SharedWorker ? new SharedWorker(script.dataset.worker).port : new Worker(script.dataset.worker);
  const enter = () => port.postMessage({ at: Number(newest), url });
  port.addEventListener("message", ({ data }) => heard(data));
  port.start?.();
  enter();
  window.addEventListener("pagehide", () => port.postMessage({ leaves: true }));
  window.addEventListener("pageshow", ({ persisted }) => { if (persisted) enter(); });
})();
