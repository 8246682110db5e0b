// One event stream for all tabs of this browser: with a stream for each, the seventh tab would hang, because
// browsers allow six connections to a host.
"use strict";
const ports = new Set();
let source = null;
let last = 0; // the id from which the stream goes on: of the newest entry that all tabs were told of
let isLost = false;

function tell(message) {
  for (const port of ports) port.postMessage(message);
}

function lose(lost) {
  if (lost !== isLost) tell({ lost });
  isLost = lost;
}

function listen(url) {
  source = new EventSource(`${url}?after=${last}`);
  source.addEventListener("begun", ({ lastEventId }) => {
    lose(false);
    if (Number(lastEventId) < last) tell({ threads: null }); // another ledger stands in its place
    last = Number(lastEventId);
  });
  source.addEventListener("grown", ({ lastEventId, data }) => {
    last = Number(lastEventId);
    tell({ threads: JSON.parse(data).threads });
  });
  source.addEventListener("error", () => {
    lose(true);
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself, with Last-Event-ID
    source = null;
    setTimeout(() => { if (source === null && ports.size) listen(url); }, 2000);
  });
}

function join(port) {
  port.addEventListener("message", ({ data }) => {
    if (data.leaves) {
      ports.delete(port);
      if (!ports.size && source !== null) { source.close(); source = null; }
      return;
    }
    ports.add(port);
    if (ports.size === 1 && source === null) last = data.at; // nobody else has to hear of what came before
    else if (last > data.at) port.postMessage({ threads: null }); // it was made before the newest event
    port.postMessage({ lost: isLost });
    if (source === null) listen(data.url);
  });
  port.start?.();
}

if ("SharedWorkerGlobalScope" in self) self.addEventListener("connect", ({ ports: [port] }) => join(port));
else join(self); // the browser has no shared workers: each tab has a worker of its own
